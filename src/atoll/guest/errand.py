"""Carries out one file operation where a host can only run commands: request in, answer out.

Sent as text, with the modules that it needs in the request.
"""

from __future__ import annotations

import base64
import importlib
import importlib.machinery
import json
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

PACKAGE = "atoll_errand"


class Sources:
    """Imports modules of one package from their texts."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = {"{}.{}".format(PACKAGE, name): text for name, text in texts.items()}
        self._texts[PACKAGE] = ""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """For the import system: what we have."""
        del path, target
        if name not in self._texts:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name == PACKAGE)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """An ordinary module will do."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        code = compile(self._texts[module.__name__], module.__name__, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The operation's answer; `invalid` if its arguments make no sense."""
    place = importlib.import_module(PACKAGE + ".place").OpenPlace()
    operations = importlib.import_module(PACKAGE + ".workspace").Workspace
    workspace = operations(place, most=request["most"])
    params = request["params"]
    if "data" in params:
        params["data"] = base64.b64decode(params["data"])
    try:
        found: dict[str, Any] = workspace.run(request["operation"], params)
    except ValueError as exc:
        return {"invalid": str(exc)}
    if "data" in found:
        found["data"] = base64.b64encode(found["data"]).decode()
    return found


def main() -> None:
    """One request from stdin, one answer to stdout: both are JSON, compressed."""
    request = json.loads(zlib.decompress(sys.stdin.buffer.read()).decode())
    sys.meta_path.insert(0, Sources(request["modules"]))
    text = json.dumps(answer(request))
    sys.stdout.buffer.write(zlib.compress(text.encode(), 1))


if __name__ == "__main__":
    main()

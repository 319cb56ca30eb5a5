"""A script that a remote shell runs to carry out one file operation: request in, answer out.

It is sent as text; the request holds the modules that it needs.
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

    from .messages import Json

PACKAGE = "atoll_file_script"


class Sources:
    """Imports modules of one package from their texts."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = {"{}.{}".format(PACKAGE, name): text for name, text in texts.items()}
        self._texts[PACKAGE] = ""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module that the request holds."""
        del path, target
        if name not in self._texts:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name == PACKAGE)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Use the default module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's source."""
        code = compile(self._texts[module.__name__], module.__name__, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def answer(request: Json) -> Json:
    """Return the operation's answer; `invalid` if its arguments are invalid."""
    files = importlib.import_module(PACKAGE + ".local_files").LocalFiles()
    operations = importlib.import_module(PACKAGE + ".workspace").Workspace
    workspace = operations(files, most=request["most"])
    params = request["params"]
    if "data" in params:
        params["data"] = base64.b64decode(params["data"])
    try:
        result: Json = workspace.run(request["operation"], params)
    except ValueError as exc:
        return {"invalid": str(exc)}
    if "data" in result:
        result["data"] = base64.b64encode(result["data"]).decode()
    return result


def main() -> None:
    """Read one request from stdin, write one answer to stdout: JSON, compressed."""
    request = json.loads(zlib.decompress(sys.stdin.buffer.read()).decode())
    sys.meta_path.insert(0, Sources(request["modules"]))
    text = json.dumps(answer(request))
    sys.stdout.buffer.write(zlib.compress(text.encode(), 1))


if __name__ == "__main__":
    main()

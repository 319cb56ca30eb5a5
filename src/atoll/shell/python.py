"""File operations in a sandbox with Python: the code of the guest is sent and runs there."""

from __future__ import annotations

import ast
import base64
import json
import zlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError
from atoll.files.answers import checked
from atoll.shell.commands import encoded
from atoll.shell.line import MAX_ANSWER, MAX_FILE, AnswerTooLargeError

if TYPE_CHECKING:
    from atoll.shell.line import Line

READ_ONLY = frozenset({"ls", "read", "read_raw", "grep", "glob", "download", "stat"})


class PythonDialect:
    """Runs operations by `python3`, 3.8 or later."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def run(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Run an operation of guest/shared/workspace."""
        data = _request(operation, params)
        twice = operation in READ_ONLY
        answer = _unpack(await self._line.ask("python", _program(), data=data, twice=twice))
        if "invalid" in answer:
            raise ValueError(str(answer["invalid"])[:1000])
        return checked(operation, answer)


def _request(operation: str, params: dict[str, Any]) -> bytes:
    if "data" in params:
        params = {**params, "data": base64.b64encode(params["data"]).decode("ascii")}
    request = {"modules": _modules(), "most": MAX_FILE, "operation": operation, "params": params}
    return zlib.compress(json.dumps(request).encode())


def _unpack(packed: bytes) -> dict[str, Any]:
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, MAX_ANSWER)
        if unpacking.unconsumed_tail:
            raise AnswerTooLargeError("the answer is too large: ask for less")
        answer = json.loads(text)
        if "data" in answer:
            answer["data"] = base64.b64decode(answer["data"], validate=True)
    except (zlib.error, ValueError, TypeError, RecursionError) as exc:
        raise SandboxError(f"the sandbox's answer cannot be read: {str(exc)[:200]}") from None
    if not isinstance(answer, dict):
        raise SandboxError("the sandbox's answer cannot be read: it is not a JSON object")
    return answer


@cache
def _program() -> str:
    return encoded(zlib.compress(_source("file_script").encode()))


@cache
def _modules() -> dict[str, str]:
    """Return the sources of the modules that the operations need, by name."""
    found: dict[str, str] = {}
    wanted = ["workspace", "local_files"]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = _source(name)
            wanted += _siblings(found[name])
    return found


def _siblings(source: str) -> list[str]:
    """Return the sibling modules that a module imports."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return [
        name
        for node in nodes
        if node.level == 1
        for name in ([node.module] if node.module else [alias.name for alias in node.names])
    ]


def _source(name: str) -> str:
    return (files("atoll.guest.shared") / f"{name}.py").read_text()

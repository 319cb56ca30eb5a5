"""The files of a remote session: the same operations, each one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from atoll.errors import AtollError, ConfigError
from atoll.files.base import Files

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.remote.connection import RemoteConnection

    Opened = Callable[[], tuple[RemoteConnection, str]]


class RemoteFiles(Files):
    """Sends operations to the service; file contents travel as they are."""

    def __init__(self, opened: Opened) -> None:
        """`opened` returns connection and path of the session, or raises SandboxClosedError."""
        self._opened = opened

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        connection, session = self._opened()
        if operation not in ("upload", "download"):
            answer: dict[str, Any] = await connection.call(
                "POST", f"{session}/files/{operation}?raw=1", params
            )
            return answer
        path = quote(params["path"], safe="", errors="surrogateescape")
        where = f"{session}/files/content?path={path}"
        try:
            if operation == "upload":
                await connection.request("PUT", where, content=params["data"])
                return {}
            return {"data": await connection.download(where)}
        except AtollError as exc:
            problem = vars(exc).get("problem") or {}
            reason = str(problem.get("detail", ""))
            if "file_error" in problem:
                return {"error": problem["file_error"], "reason": reason}
            if isinstance(exc, ConfigError) and problem.get("code") == "too_large":
                return {"error": "too_large", "reason": reason}
            if reason.startswith("name the file"):
                return {"error": "invalid_path", "reason": reason}
            raise

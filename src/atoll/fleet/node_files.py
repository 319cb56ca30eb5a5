"""Files of the sessions on a node: operations that drivers pass on, and folders that are watched.

The other side is `files`.
"""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING, Any, cast

from atoll.errors import BusyError
from atoll.files.base import request as file_request
from atoll.files.direct import FolderFiles
from atoll.fleet.peer import PassedBytes
from atoll.rpc.connection import Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.files.watch import Watch
    from atoll.hosting.sessions import Session
    from atoll.rpc.passed_fds import PassedFds

MOST_WATCHES = 64
"""Of one session."""
UNUSED_SECONDS = 600.0
"""After which changes that no client asks for are not collected any more."""
MOST_PART = 16 << 20
_WITH_DATA = frozenset({"upload", "send"})


class NodeFiles:
    """Carries out file operations of a node's sessions."""

    def __init__(self) -> None:
        self._watches: dict[Session, dict[str, Watch]] = {}
        self._used: dict[Watch, float] = {}
        self._live: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "open_file": self._open_file, "read_part": self._read_part, "inspect": self._inspect,
            "watch": self._watch, "unwatch": self._unwatch, "send": self._send,
        }  # fmt: skip

    async def request(self, session: Session, params: dict[str, Any], fds: PassedFds) -> Reply:
        """Carry out an operation; contents are beside the request and the reply."""
        operation, asked = str(params["operation"]), dict(params["params"])
        if operation in _WITH_DATA:
            asked["data"] = cast("PassedBytes", fds).take_bytes()
        limit = session.config.policy.file_size_bytes
        files = FolderFiles(lambda changing: session.folders(changing=changing), limit)
        if operation not in self._live:
            answer = await file_request(files, operation, asked)
        else:
            answer = await self._carry_out(operation, session, files, asked)
        data = answer.pop("data", None)
        return Reply(answer, PassedBytes([] if data is None else [data]))

    async def _carry_out(
        self, operation: str, session: Session, files: FolderFiles, asked: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the answer, or the OSError or ValueError that the caller is to raise."""
        try:
            return await self._live[operation](session, files, **asked)
        except OSError as exc:
            return {"fault": [exc.errno or errno.EIO, exc.strerror or str(exc)]}
        except ValueError as exc:
            return {"fault": [None, str(exc)]}

    def forget(self, session: Session) -> None:
        """Watch nothing more of a session that ends here."""
        for watch in self._watches.pop(session, {}).values():
            self._close(watch)

    def sweep(self) -> None:
        """Close watches that no client has asked for a long time, and those of ended sessions."""
        now = time.monotonic()
        for session, watches in list(self._watches.items()):
            for ident, watch in list(watches.items()):
                if session.over or now - self._used[watch] > UNUSED_SECONDS:
                    self._close(watches.pop(ident))
            if not watches:
                del self._watches[session]

    async def _open_file(self, _session: Session, files: FolderFiles, path: str) -> dict[str, Any]:
        file = await files.open_file(path)
        file.close()
        return {"size": file.size, "tag": file.tag}

    async def _read_part(
        self, _session: Session, files: FolderFiles, *, path: str, start: int, length: int, tag: str
    ) -> dict[str, Any]:
        file = await files.open_file(path)
        try:
            if file.tag.partition("-")[0] != tag.partition("-")[0]:  # its inode
                raise OSError(errno.ESTALE, "the file was replaced while it was read")
            return {"data": await file.read(start, min(length, MOST_PART))}
        finally:
            file.close()

    async def _inspect(
        self, _session: Session, files: FolderFiles, path: str, depth: int
    ) -> dict[str, Any]:
        found = await files.inspect(path, depth)
        return {"entries": [(one.path, one.mode, one.size, one.modified) for one in found]}

    async def _send(
        self, _session: Session, files: FolderFiles, path: str, data: bytes
    ) -> dict[str, Any]:
        return {"sent": await files.send(path, data)}

    async def _watch(
        self, session: Session, files: FolderFiles, *, path: str, ident: str, recursive: bool,
        pause: float | None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return changes since the last call, or wait for some; with no `pause`, begin."""
        watches = self._watches.setdefault(session, {})
        begins = ident not in watches
        if begins:
            if len(watches) >= MOST_WATCHES:
                raise BusyError(f"a session has at most {MOST_WATCHES} watched folders")
            watches[ident] = await files.watch(path, recursive=recursive)
        watch = watches[ident]
        self._used[watch] = time.monotonic()
        if begins:  # with a pause, it was watched on another node before
            return {"changes": [] if pause is None else [("", "lost", False)]}
        found = await anext(watch.changes(pause or 0.0))
        return {"changes": [(one.path, one.kind, one.is_dir) for one in found]}

    async def _unwatch(
        self, session: Session, _files: FolderFiles, path: str, ident: str  # noqa: ARG002
    ) -> dict[str, Any]:  # fmt: skip
        watch = self._watches.get(session, {}).pop(ident, None)
        if watch is not None:
            self._close(watch)
        return {}

    def _close(self, watch: Watch) -> None:
        self._used.pop(watch, None)
        watch.close()

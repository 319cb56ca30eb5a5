"""Files of a session on a fleet: what a user's process calls, and what the session's node does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import time
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Self

from atoll.concurrency.background import Background
from atoll.errors import AtollError, BusyError
from atoll.files.base import request as file_request
from atoll.files.direct import FolderFiles
from atoll.files.live import Entry, LiveFiles
from atoll.files.watch import Change
from atoll.rpc.passed_fds import PassedFds, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from atoll.files.watch import Watch
    from atoll.hosting.sessions import Session
    from atoll.rpc.connection import Items, Params

    Ask = Callable[[str, Params, Items], Awaitable[Reply]]

POLL_SECONDS = 2.0
"""For how long one call waits for changes: a session is moved between calls."""
MAX_WATCHES = 64
"""Of one session."""
UNUSED_SECONDS = 600.0
"""After which changes that no client asks for are not collected any more."""
MAX_PART = 16 << 20
_WITH_DATA = frozenset({"upload", "send"})
_LIVE = frozenset({"open_file", "read_part", "inspect", "watch", "unwatch", "send"})
_LOST = Change("", "lost")
_background = Background()


class FleetFiles(LiveFiles):
    """Sends operations to the session's node; contents travel beside them."""

    backend = "ray"

    def __init__(self, ask: Ask) -> None:
        self._send = ask

    async def _ask(self, operation: str, params: Params) -> Params:
        given = dict(params)
        data = given.pop("data", None)
        items = [] if data is None else [data]
        reply = await self._send("files", {"operation": operation, "params": given}, items)
        answer: Params = reply.value
        if reply.passed_fds:
            answer["data"] = bytes(reply.passed_fds.take_bytes())
        return answer

    async def ask(self, operation: str, **params: Any) -> Params:
        """Carry out an operation of LiveFiles; raise the OSError or ValueError that it met."""
        answer = await self._ask(operation, params)
        if "fault" in answer:
            code, text = answer["fault"]
            raise ValueError(text) if code is None else OSError(code, text)
        return answer

    async def open_file(self, path: str) -> FleetFile:
        """Open a file to read parts of it; OSError says why it cannot be read."""
        result = await self.ask("open_file", path=path)
        return FleetFile(self, path, result["size"], result["tag"])

    async def inspect(self, path: str, depth: int = 0) -> list[Entry]:
        """Describe a path, or the contents of a folder, `depth` levels down; links stay links."""
        result = await self.ask("inspect", path=path, depth=depth)
        return [Entry(*row) for row in result["entries"]]

    async def watch(self, path: str, *, recursive: bool = False) -> FleetWatch:
        """Begin to collect the changes of a folder; OSError if it cannot be watched."""
        made = FleetWatch(self, path, recursive=recursive)
        await made.open()
        return made

    async def send(self, path: str, data: bytes) -> bool:
        """Write to a FIFO that the guest reads; return False if it is missing."""
        return bool((await self.ask("send", path=path, data=data))["sent"])


@dataclass(frozen=True, slots=True)
class FleetFile:
    """A file on a node. It is opened for each part: one that was replaced meanwhile is ESTALE."""

    files: FleetFiles
    path: str
    size: int
    tag: str

    async def read(self, start: int, length: int) -> bytes:
        """Return bytes from `start` on; fewer if the file has become shorter."""
        asked = {"path": self.path, "start": start, "length": length, "tag": self.tag}
        return bytes((await self.files.ask("read_part", **asked))["data"])

    def close(self) -> None:
        """Do nothing: the node keeps no file open."""


class FleetWatch:
    """Changes below a folder of a session; the node collects them between calls.

    A session that goes on on another node is watched there; changes in between are not known, and
    are reported as one change of the kind `lost`.
    """

    def __init__(self, files: FleetFiles, path: str, *, recursive: bool) -> None:
        self._files = files
        self._about = {"path": path, "recursive": recursive, "ident": secrets.token_hex(8)}

    async def open(self) -> None:
        """Begin to watch."""
        await self._files.ask("watch", **self._about, pause=None)

    async def changes(self, pause: float) -> AsyncIterator[list[Change]]:
        """Yield changes as they come, several at a time; an empty list after a pause."""
        while True:
            end, changes = time.monotonic() + pause, list[Change]()
            while not changes and (left := end - time.monotonic()) >= 0:
                changes = await self._next(min(left, POLL_SECONDS))
            yield changes

    async def _next(self, pause: float) -> list[Change]:
        try:
            answer = await self._files.ask("watch", **self._about, pause=pause)
        except (OSError, ValueError):  # the folder is not there any more
            await asyncio.sleep(pause)
            return [_LOST]
        return [Change(*row) for row in answer["changes"]]

    def close(self) -> None:
        """Stop watching, without waiting for the node."""
        _background.spawn(self._close())

    async def _close(self) -> None:
        with contextlib.suppress(AtollError, OSError, ValueError):  # it ends with its session
            await self._files.ask("unwatch", path=self._about["path"], ident=self._about["ident"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class NodeFiles:
    """Carries out file operations of a node's sessions."""

    def __init__(self) -> None:
        self._watches: dict[Session, dict[str, Watch]] = {}
        self._used: dict[Watch, float] = {}

    async def request(self, session: Session, params: Params, fds: PassedFds) -> Reply:
        """Carry out an operation; contents are beside the request and the reply."""
        operation, asked = str(params["operation"]), dict(params["params"])
        if operation in _WITH_DATA:
            asked["data"] = bytes(fds.take_bytes())
        limit = session.config.policy.file_size_bytes
        files = FolderFiles(lambda changing: session.folders(changing=changing), limit)
        if operation in _LIVE:
            answer = await self._carry_out(operation, session, files, asked)
        else:
            answer = await file_request(files, operation, asked)
        data = answer.pop("data", None)
        return Reply(answer, PassedFds([] if data is None else [data]))

    async def _carry_out(
        self, operation: str, session: Session, files: FolderFiles, asked: Params
    ) -> Params:
        """Return the answer, or the OSError or ValueError that the caller is to raise."""
        try:
            return await self._live(operation, session, files, asked)
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

    async def _live(
        self, operation: str, session: Session, files: FolderFiles, asked: Params
    ) -> Params:
        path: str = asked["path"]
        match operation:
            case "open_file" | "read_part":
                file = await files.open_file(path)
                try:
                    if operation == "open_file":
                        return {"size": file.size, "tag": file.tag}
                    if file.tag.partition("-")[0] != asked["tag"].partition("-")[0]:  # its inode
                        raise OSError(errno.ESTALE, "the file was replaced while it was read")
                    return {"data": await file.read(asked["start"], min(asked["length"], MAX_PART))}
                finally:
                    file.close()
            case "inspect":
                result = await files.inspect(path, asked["depth"])
                return {"entries": [astuple(entry) for entry in result]}
            case "send":
                return {"sent": await files.send(path, asked["data"])}
            case "watch":
                return await self._watch(session, files, asked)
        watch = self._watches.get(session, {}).pop(asked["ident"], None)
        if watch is not None:
            self._close(watch)
        return {}

    async def _watch(self, session: Session, files: FolderFiles, asked: Params) -> Params:
        """Return changes since the last call, or wait for some; with no `pause`, begin."""
        ident, pause = asked["ident"], asked["pause"]
        watch = self._watches.get(session, {}).get(ident)
        if watch is None:
            await self._begin(session, files, asked)
            # With a pause, it was watched on another node before.
            return {"changes": [] if pause is None else [("", "lost", False)]}
        self._used[watch] = time.monotonic()
        result = await anext(watch.changes(pause or 0.0))
        return {"changes": [(change.path, change.kind, change.is_dir) for change in result]}

    async def _begin(self, session: Session, files: FolderFiles, asked: Params) -> None:
        """Begin to watch a folder; BusyError if the session watches too many."""
        made = await files.watch(asked["path"], recursive=asked["recursive"])
        watches = self._watches.setdefault(session, {})  # now: others may have begun meanwhile
        if len(watches) >= MAX_WATCHES or asked["ident"] in watches:
            made.close()
            raise BusyError(f"a session has at most {MAX_WATCHES} watched folders")
        watches[asked["ident"]], self._used[made] = made, time.monotonic()

    def _close(self, watch: Watch) -> None:
        self._used.pop(watch, None)
        watch.close()

"""Files of a session on a fleet, as a user's process sees them: each operation is a call.

What happens on the other side is in `node_files`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from atoll.errors import AtollError
from atoll.files.live import Entry, LiveFiles
from atoll.files.watch import Change
from atoll.sandbox.wire import blobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from atoll.rpc.connection import Reply

    Ask = Callable[[str, dict[str, Any], list[int]], Awaitable[Reply]]

POLL_SECONDS = 2.0
"""For how long one call waits for changes: a session is moved between calls."""
_LOST = Change("", "lost")
_closing: set[asyncio.Task[None]] = set()


class FleetFiles(LiveFiles):
    """Sends operations to the session's node; contents travel beside them."""

    backend = "ray"

    def __init__(self, ask: Ask) -> None:
        self._send = ask

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        given = dict(params)
        data = given.pop("data", None)
        fds = [] if data is None else [blobs.write(data)]
        reply = await self._send("files", {"operation": operation, "params": given}, fds)
        answer: dict[str, Any] = reply.value
        if reply.passed_fds:
            answer["data"] = blobs.read(reply.passed_fds.take())
        return answer

    async def ask(self, operation: str, **params: Any) -> dict[str, Any]:
        """Carry out an operation of LiveFiles; raise the OSError or ValueError that it met."""
        answer = await self._ask(operation, params)
        if "fault" in answer:
            code, text = answer["fault"]
            raise ValueError(text) if code is None else OSError(code, text)
        return answer

    async def open_file(self, path: str) -> FleetFile:
        """Open a file to read parts of it; OSError says why it cannot be read."""
        found = await self.ask("open_file", path=path)
        return FleetFile(self, path, found["size"], found["tag"])

    async def inspect(self, path: str, depth: int = 0) -> list[Entry]:
        """Describe a path, or what is below a folder, `depth` levels down; links stay links."""
        found = await self.ask("inspect", path=path, depth=depth)
        return [Entry(*one) for one in found["entries"]]

    async def watch(self, path: str, *, recursive: bool = False) -> FleetWatch:
        """Begin to collect the changes of a folder; OSError if it cannot be watched."""
        made = FleetWatch(self, path, recursive=recursive)
        await made.open()
        return made

    async def send(self, path: str, data: bytes) -> bool:
        """Write to a FIFO that the guest reads; return False if there is none."""
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

    A session that goes on on another node is watched there; what changed meanwhile is not known,
    which is told as a change of the kind `lost`.
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
            end, found = time.monotonic() + pause, list[Change]()
            while not found and (left := end - time.monotonic()) >= 0:
                found = await self._next(min(left, POLL_SECONDS))
            yield found

    async def _next(self, pause: float) -> list[Change]:
        try:
            answer = await self._files.ask("watch", **self._about, pause=pause)
        except (OSError, ValueError):  # the folder is not there any more
            await asyncio.sleep(pause)
            return [_LOST]
        return [Change(*one) for one in answer["changes"]]

    def close(self) -> None:
        """Stop watching, without waiting for the node."""
        task = asyncio.get_running_loop().create_task(self._close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    async def _close(self) -> None:
        with contextlib.suppress(AtollError, OSError, ValueError):  # it ends with its session
            await self._files.ask("unwatch", path=self._about["path"], ident=self._about["ident"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

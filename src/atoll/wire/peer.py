"""One end of a connection between a client and the daemon: JSON-RPC 2.0 both ways, descriptors too.

    call ──▶ line out, `fds` of it announced in its params ──▶ the other side's `serve`
    cancelled while it waits ──▶ "cancel" with its id; no answer is expected any more

Requests run at the same time, so a cancel overtakes an execute. A connection costs no task.
"""

from __future__ import annotations

import array
import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any

from atoll.errors import BusyError, SandboxLostError
from atoll.guest import rpc
from atoll.wire import blobs, faults
from atoll.wire.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[[str, dict[str, Any], blobs.PassedFds], Awaitable["Reply"]]
    Hear = Callable[[str, dict[str, Any]], None]

CHUNK = 1 << 16
MAX_FDS = 4
MAX_OPEN_CALLS = 1024
_FD_ROOM = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
_CLOSE_ON_EXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)


def _drop(answer: asyncio.Future[Reply]) -> None:
    """Close the descriptors of a reply whose caller was cancelled."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        answer.result().passed_fds.close()


class Reply:
    """The result of a request, and the file descriptors that come with it."""

    def __init__(self, value: Any, passed_fds: blobs.PassedFds | None = None) -> None:
        self.value, self.passed_fds = value, blobs.PassedFds() if passed_fds is None else passed_fds


class Peer:
    """One end of a connection. `serve` answers requests, `hear` takes notifications."""

    def __init__(
        self, sock: socket.socket, serve: Serve, hear: Hear, on_end: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self._serve, self._hear, self._on_end = sock, serve, hear, on_end
        self._buffer, self._received = rpc.LineBuffer(), list[int]()
        self._outbox, self._count = Outbox(sock), 0
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._partial_since: float | None = None
        self.ended = False
        self.heard = float("-inf")
        """When the other side last said anything, by the loop's clock."""
        self._asked = 0.0
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    async def call(
        self, method: str, params: dict[str, Any], fds: list[int] | None = None
    ) -> Reply:
        """Send a request with `fds`, then close them; return the reply, or raise its error."""
        fds = fds or []
        if self.ended:
            blobs.close_all(fds)
            raise SandboxLostError("the connection to the daemon has ended")
        self._count += 1
        ident = str(self._count)
        answer: asyncio.Future[Reply] = self._loop.create_future()
        try:
            line = rpc.request(ident, method, {**params, "fds": len(fds)} if fds else params)
        except BaseException:
            blobs.close_all(fds)
            raise
        if not self._waiting:
            self._asked = self._loop.time()
        self._waiting[ident] = answer
        try:
            await self._outbox.wait_for_room(len(line))
            passed, fds = fds, []
            self._send(line, passed)
            return await answer
        except asyncio.CancelledError:
            self.notify("cancel", {"id": ident})
            _drop(answer)
            raise
        finally:
            self._waiting.pop(ident, None)
            blobs.close_all(fds)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        if not self.ended:
            self._send(rpc.notification(method, params), [])

    @property
    def silent_seconds(self) -> float:
        """For how long the other side has said and read nothing while calls wait for it."""
        if not self._waiting:
            return 0.0
        return self._loop.time() - max(self.heard, self._asked, self._outbox.read)

    def stuck(self, seconds: float) -> bool:
        """Return whether a message has been incomplete for longer than `seconds`."""
        return self._partial_since is not None and time.monotonic() - self._partial_since > seconds

    def end(self, why: str) -> None:
        """Close the connection: fail the calls that wait, and cancel the requests that run."""
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._socket.fileno())
        self._outbox.close()
        self._socket.close()
        blobs.close_all(self._received)
        for task in list(self._running.values()):
            task.cancel()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(SandboxLostError(why))
                answer.exception()  # nobody may be waiting any more: that is no fault
        self._on_end(why)

    def _on_readable(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end("the other side has gone")
            return
        try:
            for message in self._buffer.feed(data):
                if not self.ended:
                    self._deliver(message)
            self._settle_rest(complete=data.endswith(b"\n"), begun=b"\n" in data)
        except rpc.ProtocolError as exc:
            self.end(f"it broke the protocol: {exc}")

    def _receive(self) -> bytes:
        data, ancillary, flags, _ = self._socket.recvmsg(CHUNK, _FD_ROOM, _CLOSE_ON_EXEC)
        self.heard = self._loop.time()
        for level, kind, received in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(received[: len(received) - len(received) % fds.itemsize])
                self._received += fds
        if flags & _CUT:
            raise OSError("more descriptors than there is room for")
        return data

    def _settle_rest(self, *, complete: bool, begun: bool) -> None:
        """Descriptors belong to the message that they came with; the rest came unasked."""
        if complete:
            self._partial_since = None
            blobs.close_all(self._received)
            self._received.clear()
        elif begun or self._partial_since is None:
            self._partial_since = time.monotonic()
        if len(self._received) > MAX_FDS:
            raise rpc.ProtocolError("too many descriptors")

    def _deliver(self, message: rpc.Message) -> None:
        ident, params = message.get("id"), message.get("params", {})
        if "method" not in message:
            self._settle(message)
        elif ident is not None:
            self._start(ident, message["method"], params)
        elif message["method"] == "cancel":
            if task := self._running.get(str(params.get("id"))):
                task.cancel()
        else:
            self._hear(message["method"], params)

    def _settle(self, message: rpc.Message) -> None:
        answer = self._waiting.get(message["id"])
        result = message.get("result")
        passed_fds = self._passed_fds(result) if isinstance(result, dict) else blobs.PassedFds()
        if answer is None or answer.done():
            passed_fds.close()  # it crossed with a cancel
        elif "error" in message:
            answer.set_exception(faults.from_wire(message["error"]))
        else:
            answer.set_result(Reply(result, passed_fds))

    def _passed_fds(self, holder: dict[str, Any]) -> blobs.PassedFds:
        count = holder.pop("fds", 0)
        if count == 0:
            return blobs.PassedFds()
        if type(count) is not int or not 0 < count <= len(self._received):
            raise rpc.ProtocolError("descriptors that did not come")
        taken, self._received[:count] = self._received[:count], []
        return blobs.PassedFds(taken)

    def _start(self, ident: str, method: str, params: dict[str, Any]) -> None:
        passed_fds = self._passed_fds(params)
        if ident in self._running:
            passed_fds.close()
            raise rpc.ProtocolError("an id that is in use")
        if len(self._running) >= MAX_OPEN_CALLS:
            passed_fds.close()
            self._send(faults.to_wire(ident, BusyError("too many calls at one time")), [])
            return
        task = self._loop.create_task(self._respond(ident, method, params, passed_fds))
        self._running[ident] = task
        task.add_done_callback(lambda _: self._done(ident, passed_fds))

    def _done(self, ident: str, passed_fds: blobs.PassedFds) -> None:
        self._running.pop(ident, None)
        passed_fds.close()

    async def _respond(
        self, ident: str, method: str, params: dict[str, Any], passed_fds: blobs.PassedFds
    ) -> None:
        fds: list[int] = []
        try:
            answer = await self._serve(method, params, passed_fds)
            fds = answer.passed_fds.hand_over()
            value = {**answer.value, "fds": len(fds)} if fds else answer.value
            line = rpc.result(ident, value)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the asker is told
            blobs.close_all(fds)
            line, fds = faults.to_wire(ident, exc), []
        if self.ended:
            blobs.close_all(fds)
        else:
            self._send(line, fds)

    def _send(self, line: bytes, fds: list[int]) -> None:
        if self.ended:
            blobs.close_all(fds)
        elif not self._outbox.put(line, fds):
            self.end("it does not read what it is sent")

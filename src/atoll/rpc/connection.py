"""One end of a connection between a client and the daemon: JSON-RPC 2.0 both ways, descriptors too.

    call ──▶ line out, `fds` of it announced in its params ──▶ the other side's `serve`
    cancelled while it waits ──▶ "cancel" with its id; no answer is expected any more

Requests run at the same time, so a cancel overtakes an execute. A connection costs no task.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import termios
import time
from typing import TYPE_CHECKING, Any

from atoll.errors import BusyError, SandboxError, SandboxLostError
from atoll.guest.shared import rpc
from atoll.rpc import faults
from atoll.rpc.outbox import NotYetError, Outbox
from atoll.rpc.passed_fds import PassedFds, close_all
from atoll.rpc.peer import CHUNK, JsonRpcPeer, TooManyCallsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[[str, dict[str, Any], PassedFds], Awaitable["Reply"]]
    Hear = Callable[[str, dict[str, Any]], None]

MAX_FDS = 4
CROWDED = 8 << 20
"""Unread bytes above which a call waits until the other side has read (back-pressure): a flood of
calls slows the guest that makes them, and does not end its client's connection."""
MAX_UNREAD = 64 << 20
"""Unread bytes, including memory files, above which the connection is closed."""
_FD_ROOM = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
_CLOSE_ON_EXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)


_NO_ROOM = (
    "no file descriptor is free for what came with a message: close some, or raise the limit "
    "(ulimit -n), and try again"
)


class LostDescriptorsError(Exception):
    """No descriptor was free for those of a message."""


class Reply:
    """The result of a request, and the file descriptors that come with it."""

    def __init__(self, value: Any, passed_fds: PassedFds | None = None) -> None:
        self.value, self.passed_fds = value, PassedFds() if passed_fds is None else passed_fds


class Peer(JsonRpcPeer):
    """One end of a connection. `serve` answers requests, `hear` receives notifications."""

    def __init__(
        self, sock: socket.socket, serve: Serve, hear: Hear, on_end: Callable[[str], None]
    ) -> None:
        sock.setblocking(False)
        super().__init__(sock.fileno())
        self._socket, self._serve, self._hear, self._on_end = sock, serve, hear, on_end
        self._fds = list[int]()
        self._fds_lost = False
        """Whether descriptors of the message that is arriving found no room here."""
        self._outbox = Outbox(sock.fileno(), self._write, self._cannot_write, crowded=CROWDED)
        self._lines, self._held = list[bytes](), 0
        self._turn: asyncio.Handle | None = None
        """What ends this turn of the loop, if a message was sent in it."""
        self._partial_since: float | None = None
        self.heard = float("-inf")
        """When the other side last sent anything, by the loop's clock."""
        self._asked = 0.0
        self.gone = False
        """Whether the other side has ended the connection, not this one."""

    async def call(
        self, method: str, params: dict[str, Any], fds: list[int] | None = None
    ) -> Reply:
        """Send a request with `fds`, then close them; return the reply, or raise its error."""
        fds, ident = fds or [], ""
        try:
            if self.ended:
                raise SandboxLostError("the connection to the daemon has ended")
            if not self._waiting:
                self._asked = self._loop.time()
            given = {**params, "fds": len(fds)} if fds else params
            ident, line, answer = self._expect(method, given)
            await self._outbox.wait_for_room(len(line))
            passed, fds = fds, []
            self._send(line, passed)
            answer.sent = True
            return await _reply(answer)
        except asyncio.CancelledError:
            self.notify("cancel", {"id": ident})
            raise
        finally:
            self._waiting.pop(ident, None)
            close_all(fds)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        if not self.ended:
            self._send(rpc.notification(method, params), [])

    @property
    def silent_seconds(self) -> float:
        """Seconds in which the other side has sent and read nothing while calls wait for it."""
        if not self._waiting:
            return 0.0
        return self._loop.time() - max(self.heard, self._asked, self._outbox.read)

    @property
    def sent_calls(self) -> list[str]:
        """The ids of our calls that were sent and wait for an answer."""
        return [ident for ident, answer in self._waiting.items() if answer.sent]

    def give_up(self, ident: str, why: str) -> None:
        """Wait no longer for the answer to a call."""
        if answer := self._waiting.pop(ident, None):
            answer.fail(SandboxLostError(why))

    def stuck(self, seconds: float) -> bool:
        """Return whether a message has been incomplete for longer than `seconds`."""
        return self._partial_since is not None and time.monotonic() - self._partial_since > seconds

    def end(self, why: str, *, gone: bool = False) -> None:
        """Close the connection: fail the calls that wait, and cancel the requests that run.

        `gone`: the other side has closed it, or its process has ended.
        """
        if self.ended:
            return
        self.gone = gone
        self._flush()
        self._loop.remove_reader(self._socket.fileno())
        self._outbox.close()
        self._socket.close()
        close_all(self._fds)
        self._set_ended(SandboxLostError(why))
        self._on_end(why)

    def _receive(self) -> bytes:
        data, ancillary, flags, _ = self._socket.recvmsg(CHUNK, _FD_ROOM, _CLOSE_ON_EXEC)
        self.heard = self._loop.time()
        for level, kind, received in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(received[: len(received) - len(received) % fds.itemsize])
                self._fds += fds
        if flags & _CUT:
            if len(self._fds) >= MAX_FDS:
                raise OSError("more descriptors than a message may have")
            self._fds_lost = True  # none was free here; the message itself is whole
        return data

    def _received(self, data: bytes) -> None:
        """Take messages; close descriptors that no message of the same packet has announced."""
        if data.endswith(b"\n"):
            self._partial_since = None
            close_all(self._fds)
            self._fds.clear()
            self._fds_lost = False
        elif b"\n" in data or self._partial_since is None:
            self._partial_since = time.monotonic()
        if len(self._fds) > MAX_FDS:
            raise rpc.ProtocolError("too many descriptors")

    def _lose(self, violation: str | None) -> None:
        broken = f"it broke the protocol: {violation}"
        why = "the other side has gone" if violation is None else broken
        self.end(why, gone=violation is None)

    def _notified(self, method: str, params: dict[str, Any]) -> None:
        if method != "cancel":
            self._hear(method, params)
        elif task := self._calls.get(str(params.get("id"))):
            task.cancel()

    def _refusal(self, error: dict[str, Any]) -> Exception:
        return faults.from_wire(error)

    def _settle(self, message: rpc.Message) -> None:
        result = message.get("result")
        answer = self._waiting.get(message["id"])
        try:
            passed_fds = self._passed_fds(result) if isinstance(result, dict) else PassedFds()
        except LostDescriptorsError:
            if answer is not None:
                answer.fail(SandboxError(_NO_ROOM))
            return
        if answer is None or answer.done():
            passed_fds.close()  # the answer crossed with a cancel
            return
        message["result"] = Reply(result, passed_fds)
        super()._settle(message)

    def _passed_fds(self, holder: dict[str, Any]) -> PassedFds:
        count = holder.pop("fds", 0)
        if count == 0:
            return PassedFds()
        if self._fds_lost:
            raise LostDescriptorsError
        if type(count) is not int or not 0 < count <= len(self._fds):
            raise rpc.ProtocolError("descriptors that did not come")
        taken, self._fds[:count] = self._fds[:count], []
        return PassedFds(taken)

    def _start_call(self, message: rpc.Message) -> None:
        try:
            message["passed_fds"] = self._passed_fds(message.setdefault("params", {}))
        except LostDescriptorsError:
            self._send(faults.to_wire(message["id"], BusyError(_NO_ROOM)), [])
            return
        try:
            super()._start_call(message)
        except TooManyCallsError as exc:
            message["passed_fds"].close()
            self._send(faults.to_wire(message["id"], BusyError(str(exc))), [])
        except rpc.ProtocolError:
            message["passed_fds"].close()
            raise

    def _call_done(self, message: rpc.Message) -> None:
        super()._call_done(message)
        message["passed_fds"].close()

    async def _answer_call(self, message: rpc.Message) -> None:
        ident, fds = message["id"], list[int]()
        try:
            answer = await self._serve(message["method"], message["params"], message["passed_fds"])
            fds = answer.passed_fds.hand_over()
            value = {**answer.value, "fds": len(fds)} if fds else answer.value
            line = rpc.result(ident, value)
        except Exception as exc:  # noqa: BLE001 - every error is sent to the caller
            close_all(fds)
            line, fds = faults.to_wire(ident, exc), []
        self._send(line, fds)

    def _send(self, line: bytes, fds: list[int]) -> None:
        """Send a message: at once if it is the first in this turn of the loop, else with others."""
        if self._outbox.size > MAX_UNREAD:
            self.end("it does not read what it is sent")
        if self.ended:
            close_all(fds)
        elif self._turn is None:
            self._turn = self._loop.call_soon(self._end_turn)
            self._outbox.put(line, fds)
        elif fds or self._held > CHUNK:
            self._flush()
            self._outbox.put(line, fds)
        else:
            self._lines.append(line)
            self._held += len(line)

    def _end_turn(self) -> None:
        self._turn = None
        self._flush()

    def _flush(self) -> None:
        """Write the messages that were held back in this turn of the loop, all at once."""
        if self._lines and not self.ended:
            held, self._lines, self._held = b"".join(self._lines), [], 0
            self._outbox.put(held, [])

    def _write(self, data: bytes | memoryview, fds: list[int]) -> int:
        """Send as much as fits. Descriptors wait until everything before them was read.

        Otherwise any number of memory files could be in the socket's buffer, uncounted.
        """
        if not fds:
            return self._socket.send(data)
        if fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)) != bytes(4):
            raise NotYetError
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        return self._socket.sendmsg([data], rights)

    def _cannot_write(self, _exc: OSError) -> None:
        with contextlib.suppress(OSError):  # a message is lost, and with it its answer
            self._socket.shutdown(socket.SHUT_RDWR)


async def _reply(answer: asyncio.Future[Reply]) -> Reply:
    """Return the reply; a cancelled caller's descriptors are closed."""
    try:
        return await answer
    except asyncio.CancelledError:
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            answer.result().passed_fds.close()
        raise

"""One end of a connection between a client and the daemon, or a driver and a node of a fleet.

    call ──▶ line out, `fds` of it announced in its params ──▶ the other side's `serve`
    cancelled while it waits ──▶ "cancel" with its id; no answer is expected any more

JSON-RPC 2.0 both ways, with items beside a message (`transports`). Requests run at the same time,
so a cancel overtakes an execute. A connection costs no task.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from atoll.errors import BusyError, SandboxError, SandboxLostError
from atoll.guest.shared import rpc
from atoll.rpc import faults
from atoll.rpc.passed_fds import NO_FDS, Reply, close_all, size_of
from atoll.rpc.peer import (
    CHUNK,
    MAX_OPEN_CALLS,
    MAX_WAITING,
    JsonRpcPeer,
    Outbox,
    TooManyCallsError,
)
from atoll.rpc.transports import LostDescriptorsError, transport_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from atoll.rpc.blobs import Buffer
    from atoll.rpc.passed_fds import PassedFds

    Params = dict[str, Any]
    Items = Sequence[int | Buffer]
    Serve = Callable[[str, Params, PassedFds], Awaitable["Reply"]]
    OnNotification = Callable[[str, Params], None]

HIGH_WATER = 8 << 20
"""Unread bytes above which calls and replies wait until the other side has read (back-pressure): a
flood of calls slows the guest that makes them, and does not end its client's connection."""
MAX_UNREAD = 64 << 20
"""Bytes that were sent all the same, as notifications are, above which the connection is closed."""
NOISY_CHECKS = 12
"""After so many checks without an answer to a ping, a peer that says other things is given up."""
_NO_ROOM = (
    "no file descriptor is free for what came with a message: close some, or raise the limit "
    "(ulimit -n), and try again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """How far the other side is trusted, and how its silence is noticed."""

    name: str = "it"
    """What errors call the other side."""
    lost_error: type[SandboxLostError] = SandboxLostError
    """What calls raise once the connection has ended."""
    max_calls: int = MAX_OPEN_CALLS
    """Calls of the other side that run at one time; more are refused."""
    max_waiting: int | None = MAX_WAITING
    """Bytes of calls that wait for room before others are refused, and of replies that wait before
    the connection is closed. None: as many as the calls have."""
    silent_seconds: float | None = None
    """After which a silent peer is given up; None: it is not pinged."""
    watch_idle: bool = False
    """Whether it is pinged too while no call waits for it."""


class Peer(JsonRpcPeer):
    """One end of a connection. `serve` answers requests."""

    def __init__(
        self,
        sock: socket.socket,
        serve: Serve,
        on_notification: OnNotification,
        on_end: Callable[[str], None],
        options: PeerOptions = PeerOptions(),
    ) -> None:
        sock.setblocking(False)
        super().__init__(sock.fileno(), options.max_calls)
        self._socket, self._serve, self._on_notification, self._on_end = (
            sock,
            serve,
            on_notification,
            on_end,
        )
        self.name, self._lost_error = options.name, options.lost_error
        self._transport = transport_of(sock)
        self._outbox = Outbox(
            sock.fileno(),
            self._transport.send,
            self._cannot_write,
            send_fds=getattr(self._transport, "send_fds", None),
            high_water=HIGH_WATER,
            max_waiting=options.max_waiting,
        )
        self._lines, self._held = list[bytes](), 0
        self._turn: asyncio.Handle | None = None
        """What ends this turn of the loop, if a message was sent in it."""
        self._partial_since: float | None = None
        self.heard = float("-inf")
        """When the other side last sent anything, by the loop's clock."""
        self._asked = self._loop.time()
        """When the first of the calls that wait was made; before that, when the peer was."""
        self.gone = False
        """Whether the other side has ended the connection, not this one."""
        self._keepalive = None
        if options.silent_seconds is not None:
            self._keepalive = Keepalive(self, options.silent_seconds, when_idle=options.watch_idle)

    async def call(self, method: str, params: Params, items: Items = ()) -> Reply:
        """Send a request with descriptors or bytes beside it; return the reply, or raise its error.

        The descriptors are closed.
        """
        left, ident, answer = list(items), "", None
        try:
            if self._ended is not None:
                text = f"the connection to {self.name} has ended: {self._ended}"
                raise self._lost_error(text)
            if not self._waiting:
                self._asked = self._loop.time()
            if self._keepalive is not None and self._keepalive.timer is None:
                self._keepalive.start()
            given = {**params, "fds": len(left)} if left else params
            ident, line, answer = self._expect(method, given)
            if not self._outbox.has_room.is_set():
                await self._outbox.wait_for_room(len(line))
            passed, left = left, []
            self._send(line, passed)
            answer.sent = True
            return await cast("Awaitable[Reply]", answer)
        except asyncio.CancelledError:
            self.notify("cancel", {"id": ident})
            if answer is not None and answer.has_reply:
                answer.result().passed_fds.close()
            raise
        finally:
            self._waiting.pop(ident, None)
            if left:
                close_all(left)

    def notify(self, method: str, params: Params) -> None:
        """Send a notification."""
        if not self.ended:
            self._send(rpc.notification(method, params), [])

    @property
    def silent_seconds(self) -> float:
        """Seconds since the other side sent or read anything, or was asked something."""
        return self._loop.time() - max(self.heard, self._asked, self._outbox.last_drained_at)

    @property
    def sent_calls(self) -> list[str]:
        """The ids of our calls that were sent and wait for an answer."""
        return [ident for ident, answer in self._waiting.items() if answer.sent]

    @property
    def waits(self) -> bool:
        """Whether calls wait for an answer, or to be sent."""
        return bool(self._waiting)

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
        if self._keepalive is not None:
            self._keepalive.stop()
        self._loop.remove_reader(self._socket.fileno())
        self._outbox.close()
        self._socket.close()
        self._transport.close()
        self._set_ended(self._lost_error(why))
        self._on_end(why)

    def _receive(self) -> bytes:
        try:
            return self._transport.receive()
        finally:
            self.heard = self._loop.time()

    def _received(self, data: bytes) -> None:
        """Note whether a message is incomplete."""
        complete = data.endswith(b"\n")
        if complete:
            self._partial_since = None
        elif b"\n" in data or self._partial_since is None:
            self._partial_since = time.monotonic()
        self._transport.end_packet(complete=complete)

    def _lose(self, violation: str | None) -> None:
        broken = f"{self.name} broke the protocol: {violation}"
        self.end(f"{self.name} has gone" if violation is None else broken, gone=violation is None)

    def _notified(self, method: str, params: Params) -> None:
        if method != "cancel":
            self._on_notification(method, params)
        elif task := self.calls.get(str(params.get("id"))):
            task.cancel()

    def _refusal(self, error: dict[str, Any]) -> Exception:
        return faults.from_wire(error)

    def _settle(self, message: rpc.Message) -> None:
        result = message.get("result")
        answer = self._waiting.get(message["id"])
        try:
            passed_fds = NO_FDS
            if isinstance(result, dict) and "fds" in result:
                passed_fds = self._passed_fds(result)
        except LostDescriptorsError:
            if answer is not None:
                answer.fail(SandboxError(_NO_ROOM))
            return
        if answer is None or answer.done():
            passed_fds.close()  # the answer crossed with a cancel
            return
        message["result"] = Reply(result, passed_fds)
        super()._settle(message)

    def _passed_fds(self, holder: Params) -> PassedFds:
        count = holder.pop("fds", 0)
        if count == 0:
            return NO_FDS
        if type(count) is not int or count < 0:
            raise rpc.ProtocolError("`fds` must be a count")
        return self._transport.take(count)

    def _start_call(self, message: rpc.Message) -> None:
        try:
            params = message.setdefault("params", {})
            passed = self._passed_fds(params) if "fds" in params else NO_FDS
            message["passed_fds"] = passed
        except LostDescriptorsError:
            self._send(faults.to_wire(message["id"], BusyError(_NO_ROOM)), [])
            return
        try:
            super()._start_call(message)
        except TooManyCallsError as exc:
            passed.close()
            self._send(faults.to_wire(message["id"], BusyError(str(exc))), [])
        except rpc.ProtocolError:
            passed.close()
            raise
        else:
            if passed is not NO_FDS:  # a call that is cancelled before it starts has no `finally`
                self.calls[message["id"]].add_done_callback(lambda _: passed.close())

    async def _answer_call(self, message: rpc.Message) -> None:
        ident, items = message["id"], list["int | Buffer"]()
        try:
            if message["method"] == "ping":
                answer = Reply({"calls": list(self.calls)})
            else:
                serve, asked = self._serve, message["params"]
                answer = await serve(message["method"], asked, message["passed_fds"])
            value = answer.value
            if answer.passed_fds is not NO_FDS and (items := answer.passed_fds.hand_over()):
                value = {**value, "fds": len(items)}
            line = rpc.result(ident, value)
        except Exception as exc:  # noqa: BLE001 - every error is sent to the caller
            close_all(items)
            line, items = faults.to_wire(ident, exc), []
        try:
            if not self._outbox.has_room.is_set():
                await self._outbox.wait_for_room(len(line) + size_of(items))
        except BusyError:
            self._end_unread()
        except asyncio.CancelledError:
            close_all(items)
            raise
        self._send(line, items)

    def _send(self, line: bytes, items: Items) -> None:
        """Send a message: at once if it is the first in this turn of the loop, else with others."""
        if self._outbox.overrun > MAX_UNREAD:
            self._end_unread()
        if self.ended:
            close_all(items)
            return
        if self._turn is None:
            self._turn = self._loop.call_soon(self._end_turn)
        elif items or self._held > CHUNK:
            self._flush()
        else:
            self._lines.append(line)
            self._held += len(line)
            return
        for data, fds in self._transport.pack(line, items) if items else [(line, [])]:
            self._outbox.put(data, fds)

    def _end_turn(self) -> None:
        self._turn = None
        if self._lines:
            self._flush()

    def _flush(self) -> None:
        """Write the messages that were held back in this turn of the loop, all at once."""
        if self._lines and not self.ended:
            held, self._lines, self._held = b"".join(self._lines), [], 0
            self._outbox.put(held, [])

    def _end_unread(self) -> None:
        self.end(f"{self.name} does not read what it is sent")

    def _cannot_write(self, _exc: OSError) -> None:
        with contextlib.suppress(OSError):  # a message is lost, and with it its answer
            self._socket.shutdown(socket.SHUT_RDWR)


class Keepalive:
    """Ends a connection whose other side has been silent for `seconds`, at the latest.

    An execution may wait for its turn and then run for long, so there is no limit for one answer.
    A peer that lives answers a ping meanwhile, with the calls that it works on. Without
    `when_idle` it is pinged only while calls wait for an answer.
    """

    def __init__(self, peer: Peer, seconds: float, *, when_idle: bool) -> None:
        self._peer, self._seconds, self._when_idle = peer, seconds, when_idle
        self._loop = asyncio.get_running_loop()
        self.timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None
        self._pinged, self._unanswered_checks = 0.0, 0
        if when_idle:
            self.start()

    def start(self) -> None:
        """Look from now on, unless that goes on already."""
        if self.timer is None:
            self.timer = self._loop.call_later(self._seconds / 2, self._check)

    def stop(self) -> None:
        """Look no more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _check(self) -> None:
        """Ping a peer that is silent; end the connection if it does not answer that either.

        Silence alone proves nothing: our own loop may have been blocked, and asked for no answer.
        Noise proves nothing either: a peer that only prints is pinged too, less often. It has
        some checks to answer instead of a time, as our loop may have read nothing meanwhile.
        """
        self.timer, silent = None, self._peer.silent_seconds
        if self._peer.ended or not (self._when_idle or self._peer.waits):
            return
        since_ping = self._loop.time() - self._pinged
        if self._ping is not None:
            self._unanswered_checks += 1
            quiet = min(silent, since_ping) >= self._seconds / 2
            if quiet or self._unanswered_checks >= NOISY_CHECKS:
                seconds = max(silent, since_ping)
                name = self._peer.name
                self._peer.end(f"{name} has not answered for {seconds:.1f} s, and was given up")
                return
        self.timer = self._loop.call_later(self._seconds / 4, self._check)
        if self._ping is None and (silent >= self._seconds / 4 or since_ping >= self._seconds):
            self._pinged, self._unanswered_checks = self._loop.time(), 0
            self._ping = self._loop.create_task(self._ask_for(self._peer.sent_calls))
            self._ping.add_done_callback(self._forget_ping)

    async def _ask_for(self, calls: list[str]) -> None:
        """Ask whether the peer lives; give up those of our calls that it does not work on.

        What it answered before it answered this has arrived before this.
        """
        answer = (await self._peer.call("ping", {})).value
        known = answer.get("calls") if isinstance(answer, dict) else None
        for ident in calls:
            if not isinstance(known, list) or ident not in known:
                name = self._peer.name
                self._peer.give_up(ident, f"{name} lives, and does not know this call any more")

    def _forget_ping(self, ping: asyncio.Task[None]) -> None:
        self._ping = None
        if not ping.cancelled():
            ping.exception()  # the calls that wait have it too

"""Requests jails from the supervisor, and holds their leases."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError, SandboxLostError, SandboxStartError
from atoll.jail.measure.usage import JailUsage
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.guest_network import JailNetwork
from atoll.jail.supervisor.process_lease import start_process
from atoll.jail.supervisor.supervisor_process import socket_pair, supervisor
from atoll.types import EndReport

if TYPE_CHECKING:
    import socket

    from atoll.jail.supervisor.guest_network import GuestNetwork
    from atoll.jail.supervisor.process_lease import ProcessLease
    from atoll.jail.supervisor.spec import ProcessSpec, Spec

__all__ = ["Lease", "request", "socket_pair", "supervisor"]
MAX_EVENT = 1 << 16
FULL_SECONDS = 0.005
ANSWER_SECONDS = 20.0
"""In which the supervisor answers: it gives up on a jail that will not end after half of that."""
WAKE_SECONDS = 1.0
"""After which the supervisor, zygote host and zygote that an answer waits for get SIGCONT: if one
was stopped, its jails go unwatched. To a process that runs, the signal does nothing."""
REPORT_SECONDS = 1.0
"""In which a guest that has closed its channel ends by itself, and its end is reported."""


def request(wanted: Spec, guest_fds: list[int]) -> Lease:
    """Request a jail. The caller closes the descriptors."""
    return Lease(supervisor.ask(wanted, guest_fds))


class Lease:
    """The host's socket to one jail. When it closes, or the host dies, the jail is killed."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self._supervisor = sock, supervisor.pid
        self._killed = False
        self._late: asyncio.TimerHandle | None = None
        self._asked: float | None = None
        """Since when the supervisor owes an answer, by the loop's clock."""
        self._usage: list[asyncio.Future[float]] = []
        self._folders: list[asyncio.Future[list[int]]] = []
        self._network: GuestNetwork | None = None
        self.usage = JailUsage({})
        """CPU time and memory of the jail; empty until it has started."""
        self.starts = 0
        """How often it has started: a zygote that dies is started again in its jail."""
        self.started: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.ended: asyncio.Future[EndReport] = self._loop.create_future()
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)
        self._wake_later()

    def interrupt(self) -> None:
        """Send SIGINT to the guest's main process."""
        supervisor.wake(self._supervisor)  # nothing is answered, so none can be missed
        self._send("interrupt")

    def kill(self) -> None:
        """Send SIGKILL to every process of the jail; `ended` is set afterwards."""
        self._send("kill")
        self._killed = True
        self._expect()

    def retire(self) -> None:
        """End the zygote behind this lease when the last guest that was forked off it has ended."""
        self._send("retire")

    def give(self, *fds: int) -> None:
        """Offer descriptors to the guest, replacing earlier ones that it did not take.

        Send the guest its request only afterwards. The caller closes them. SandboxError on failure.
        """
        supervisor.wake(self._supervisor)
        try:
            packets.send(self._socket, "give", fds)
        except OSError as exc:
            raise SandboxError(f"the guest cannot be given a descriptor: {exc}") from None

    def clone(self, status: socket.socket) -> Lease:
        """Return the lease of a clone that the guest will make; it reports on `status`'s peer."""
        ours, theirs = socket_pair("clone")
        with theirs:
            try:
                packets.send(self._socket, "clone", [theirs.fileno(), status.fileno()])
            except OSError as exc:
                ours.close()
                raise SandboxStartError("clone", str(exc)) from exc
        return Lease(ours)

    async def start_process(self, wanted: ProcessSpec) -> ProcessLease:
        """Start a process beside the guest; ProcessError says why it does not start."""
        process = start_process(self._socket, wanted)
        await process.started()
        self.usage.started.add(process.outer_pid)
        process.ended.add_done_callback(lambda _: self.usage.started.discard(process.outer_pid))
        return process

    async def cpu_seconds(self) -> float:
        """Return the CPU time that the jail has used so far."""
        answer: asyncio.Future[float] = self._loop.create_future()
        self._usage.append(answer)
        self._send("usage")
        self._expect()
        return await answer

    async def folders(self) -> list[int]:
        """Return descriptors of the jail's SHOWN_FOLDERS and its further folders, the caller's.

        The upper layer of an image's writable root follows them, if there is one.
        Without a root of its own the guest has only the working folder. Raise SandboxLostError if
        the jail has ended.
        """
        if fds := await self._descriptors("folders"):
            return fds
        raise SandboxLostError("the guest has ended, and its files with it")

    async def listener(self) -> int | socket.socket:
        """A socket that listens on the loopback of the jail, at PROXY_ADDRESS; the caller's."""
        if fds := await self._descriptors("network"):
            return fds[0]
        reason = "the jail has no loopback, or has ended"
        raise SandboxStartError("network", reason)

    def network(self) -> GuestNetwork:
        """Return the way to servers in the jail; SandboxLostError if the jail has ended."""
        if self.ended.done():
            raise SandboxLostError("the guest has ended, and its servers with it")
        if self._network is None or self._network.closed:
            self._network = self._enter_network()
        return self._network

    def _enter_network(self) -> GuestNetwork:
        def start(fd: int) -> None:
            supervisor.wake(self._supervisor)
            try:
                packets.send(self._socket, "enter", [fd])
            except OSError as exc:
                raise SandboxError(f"the guest's network cannot be reached: {exc}") from None

        return JailNetwork(start)

    async def _descriptors(self, command: str) -> list[int]:
        """Ask for descriptors: answers come in the order of the questions."""
        if self.ended.done():
            return []
        answer: asyncio.Future[list[int]] = self._loop.create_future()
        while not self._send(command):  # noqa: ASYNC110 - the supervisor has much to read
            await asyncio.sleep(FULL_SECONDS)
        self._folders.append(answer)
        self._expect()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                packets.close_all(answer.result())
            raise

    async def end_report(self) -> EndReport:
        """Return how a guest that has closed its channel ended; kill one that lives on."""
        await asyncio.wait({self.ended}, timeout=REPORT_SECONDS)
        self.kill()
        return await asyncio.shield(self.ended)

    async def close(self) -> None:
        """Kill the jail and wait until nothing of it is left."""
        self.kill()
        with contextlib.suppress(SandboxError):
            await asyncio.shield(self.ended)
        self._detach()

    def _send(self, command: str) -> bool:
        """Send a command; return False if the socket is full."""
        if self._socket.fileno() >= 0 and not self.ended.done():
            try:
                packets.send(self._socket, command)
            except BlockingIOError:
                return False
            except OSError:
                return True
        return True

    def _expect(self) -> None:
        """Note that the supervisor owes an answer."""
        if self._asked is None:
            self._asked = self._loop.time()
        self._wake_later()

    def _wake_later(self) -> None:
        if self._late is None and self._socket.fileno() >= 0:
            self._late = self._loop.call_later(WAKE_SECONDS, self._on_late)

    def _on_late(self) -> None:
        """Wake a process that was stopped. Kill a supervisor that does not answer in time.

        A start may take long, and has no answer of its own: the supervisor is asked another thing.
        """
        self._late = None
        supervisor.wake(self._supervisor)
        self._send("wake")
        if self._asked is None:
            self._usage.append(self._loop.create_future())
            self._send("usage")
            self._expect()
        elif self._loop.time() - self._asked >= ANSWER_SECONDS:
            supervisor.end_stuck(self._supervisor)  # its jails would go unwatched
        self._wake_later()

    def _heard(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self._asked = None
        if self._killed or self._usage or self._folders:
            self._expect()
        elif not self.started.done():
            self._wake_later()

    def _on_readable(self) -> None:
        try:
            message = self._receive()
        except BlockingIOError:
            return
        except packets.LostDescriptorsError as exc:  # only folders come with descriptors
            # Fail the oldest waiter: this process has no descriptor free for what came.
            answer = self._folders.pop(0)
            if not answer.done():
                answer.set_exception(SandboxError(f"the guest's folder cannot be opened: {exc}"))
            self._heard()
            return
        if message is None:
            supervisor.suspect(self._supervisor)
            self._fail(SandboxLostError("the supervisor has gone, and the sandbox with it"))
            return
        self._note(message.kind, message.fields, message.fds)
        self._heard()

    def _note(self, event: str, fields: dict[str, Any], fds: list[int]) -> None:
        if event == "started":
            self.starts += 1
            self.usage = self._usage_from(fields.pop("usage", {}))
            _settle(self.started, fields)
        elif event == "usage":
            _settle(self._usage.pop(0), fields["cpu_seconds"])
        elif event == "folders":
            # Give the descriptors to the oldest waiter, or close them if it was cancelled.
            answer = self._folders.pop(0)
            if answer.done():
                packets.close_all(fds)
            else:
                answer.set_result(fds)
        elif event == "failed":
            step, _, reason = fields["reason"].partition(": ")
            self._fail(SandboxStartError(step, reason or step))
        else:
            self._finish(EndReport(**fields))

    def _receive(self) -> packets.Message | None:
        """Return the next message. If the supervisor left a command unread, a reset comes first."""
        for _ in range(2):
            with contextlib.suppress(ConnectionResetError):
                return packets.receive(self._socket, MAX_EVENT)
        return None

    def _usage_from(self, source: dict[str, Any]) -> JailUsage:
        """Return the counters of the jail; other where its guest has a kernel of its own."""
        return JailUsage(source)

    def _finish(self, report: EndReport) -> None:
        if not self.started.done():
            self._fail(SandboxStartError("start", f"it ended at once with {report}"))
            return
        _settle(self.ended, report)
        self._detach()

    def _fail(self, error: SandboxError) -> None:
        for future in (self.started, self.ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # asyncio logs an exception that was never read
        self._detach()

    def _detach(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        for answer in self._usage:
            answer.cancel()
        self._usage.clear()
        self.usage.close()
        for folders in self._folders:
            _settle(folders, [])
        self._folders.clear()
        if self._network is not None:
            self._network.close()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    """Set the result unless the waiter was cancelled."""
    if not future.done():
        future.set_result(value)

"""Client of the supervisor: starts it on first use, requests jails, holds their leases."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError, SandboxLostError, SandboxStartError
from atoll.jail import packets, spec
from atoll.jail.usage import JailUsage
from atoll.types import EndReport

if TYPE_CHECKING:
    from atoll.jail.spec import Spec

_BOOT = (
    "import sys; sys.path.append(sys.argv[2]); "
    "from atoll.jail.supervisor import main; main(int(sys.argv[1]))"
)
_SEND_BUFFER = 1 << 20
_EXIT_SECONDS = 5
_DYING_SECONDS = 0.2
MAX_EVENT = 1 << 16
FULL_SECONDS = 0.005
ANSWER_SECONDS = 20.0
"""In which the supervisor answers: it gives up on a jail that will not end after half of that."""
SEND_SECONDS = 5
REPORT_SECONDS = 1.0
"""In which a guest that has closed its channel ends by itself, and its end is reported."""


class Lease:
    """The host's socket to one jail. When it closes, or the host dies, the jail is killed."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self._supervisor = sock, supervisor.pid
        self._killed = False
        self._overdue: asyncio.TimerHandle | None = None
        self._usage: list[asyncio.Future[float]] = []
        self._folders: list[asyncio.Future[list[int]]] = []
        self.usage = JailUsage({})
        """CPU time and memory of the jail; empty until it has started."""
        self.starts = 0
        """How often it has started: a zygote that dies is started again in its jail."""
        self.started: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.ended: asyncio.Future[EndReport] = self._loop.create_future()
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def interrupt(self) -> None:
        """Send SIGINT to the guest's main process."""
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
        try:
            packets.send(self._socket, "give", fds)
        except OSError as exc:
            raise SandboxError(f"the guest cannot be given a descriptor: {exc}") from None

    def clone(self, status: socket.socket) -> Lease:
        """Return the lease of a clone that the guest will make; it reports on `status`'s peer."""
        ours, theirs = _socket_pair("clone")
        with theirs:
            try:
                packets.send(self._socket, "clone", [theirs.fileno(), status.fileno()])
            except OSError as exc:
                ours.close()
                raise SandboxStartError("clone", str(exc)) from exc
        return Lease(ours)

    async def cpu_seconds(self) -> float:
        """Return the CPU time that the jail has used so far."""
        answer: asyncio.Future[float] = self._loop.create_future()
        self._usage.append(answer)
        self._send("usage")
        self._expect()
        return await answer

    async def folders(self) -> list[int]:
        """Return descriptors of the jail's SHOWN_FOLDERS; the caller closes them.

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

    async def _descriptors(self, command: str) -> list[int]:
        """Ask for descriptors: answers come in the order of the questions."""
        if self.ended.done():
            return []
        answer: asyncio.Future[list[int]] = self._loop.create_future()
        while not self._send(command):  # noqa: ASYNC110 - the supervisor has much to read
            await asyncio.sleep(FULL_SECONDS)
        self._folders.append(answer)
        self._expect()
        return await _unless_cancelled(answer)

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
        """Kill the supervisor if it does not answer in time: its jails would go unwatched."""
        if self._overdue is None and self._socket.fileno() >= 0:
            self._overdue = self._loop.call_later(
                ANSWER_SECONDS, supervisor.end_stuck, self._supervisor
            )

    def _heard(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self._killed or self._usage or self._folders:
            self._expect()

    def _on_readable(self) -> None:
        try:
            message = self._receive()
        except BlockingIOError:
            return
        except packets.LostDescriptorsError as exc:  # only folders come with descriptors
            self._lose_folders(exc)
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
            self._take_folders(fds)
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
        return JailUsage(source)

    def _take_folders(self, fds: list[int]) -> None:
        """Give the descriptors to the oldest waiter, or close them if it was cancelled."""
        answer = self._folders.pop(0)
        if answer.done():
            packets.close_all(fds)
        else:
            answer.set_result(fds)

    def _lose_folders(self, fault: OSError) -> None:
        """Fail the oldest waiter: this process has no descriptor free for what came."""
        answer = self._folders.pop(0)
        if not answer.done():
            answer.set_exception(SandboxError(f"the guest's folder cannot be opened: {fault}"))

    def _finish(self, report: EndReport) -> None:
        if not self.started.done():
            self._fail(SandboxStartError("start", f"it ended at once: {report}"))
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
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        for answer in self._usage:
            answer.cancel()
        self._usage.clear()
        self.usage.close()
        for folders in self._folders:
            _settle(folders, [])
        self._folders.clear()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


async def _unless_cancelled(answer: asyncio.Future[list[int]]) -> list[int]:
    """Await the descriptors; close them if the waiter is cancelled after they arrived."""
    try:
        return await answer
    except asyncio.CancelledError:
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            packets.close_all(answer.result())
        raise


def _socket_pair(step: str) -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a lease; SandboxStartError if no descriptor is free."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as exc:
        raise SandboxStartError(step, str(exc)) from exc


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    """Set the result unless the waiter was cancelled."""
    if not future.done():
        future.set_result(value)


class SupervisorClient:
    """The supervisor of this host process; started again if it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._suspected: int | None = None

    def request(self, wanted: Spec, guest_fds: list[int]) -> Lease:
        """Request a jail. The caller closes the descriptors."""
        return Lease(self.ask(wanted, guest_fds))

    def ask(self, wanted: Spec, guest_fds: list[int]) -> socket.socket:
        """Request a jail and return only the lease's socket, for callers without an event loop."""
        ours, theirs = _socket_pair("supervisor")
        with theirs:
            try:
                self._send(spec.request(wanted), [theirs.fileno(), *guest_fds])
            except OSError as exc:
                ours.close()
                raise SandboxStartError("supervisor", str(exc)) from exc
        return ours

    def stop(self) -> None:
        """End the supervisor and all its jails."""
        with self._lock:
            self._forget()

    def end_stuck(self, pid: int | None) -> None:
        """Kill the supervisor if it still has this pid; its jails end and their leases fail."""
        with self._lock:
            if self._process is not None and self._process.pid == pid:
                self._process.kill()

    def suspect(self, pid: int | None) -> None:
        """Note that a lease of the supervisor with this pid was closed without a report."""
        self._suspected = pid

    @property
    def pid(self) -> int | None:
        """The supervisor's process, if it runs."""
        return self._process.pid if self._process else None

    def _send(self, data: bytes, fds: list[int]) -> None:
        with self._lock:
            try:
                packets.send_bytes(self._ensure(), data, fds)
            except ConnectionError:  # it is about to end: its socket goes before its process
                self._forget()
                packets.send_bytes(self._ensure(), data, fds)

    def _ensure(self) -> socket.socket:
        if self._owner != os.getpid():  # we are a fork: the parent's supervisor is not ours
            if self._control is not None:
                self._control.close()
            self._process = self._control = None
        if self._control is not None and self._process and self._runs(self._process):
            return self._control
        self._forget()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        with theirs:
            self._process = _start(theirs.fileno())
        self._control, self._owner = ours, os.getpid()
        atexit.register(self.stop)
        return ours

    def _runs(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the supervisor lives. A dying one has closed its leases, not yet its process."""
        if self._suspected == process.pid:
            self._suspected = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DYING_SECONDS)
        return process.poll() is None

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._owner == os.getpid():
            try:
                self._process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None
        atexit.unregister(self.stop)


def _start(control_fd: int) -> subprocess.Popen[bytes]:
    home = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOT, str(control_fd), home],
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(control_fd,),
        start_new_session=True,
    )


supervisor = SupervisorClient()

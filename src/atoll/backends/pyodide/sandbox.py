"""PyodideSandbox: a session in CPython compiled to WebAssembly, inside Deno, inside a jail.

Deno cannot receive descriptors, so the host reads them and sends their content to its stdin.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import signal
import stat
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends.pyodide import deno, distribution, image, index, wheels
from atoll.backends.pyodide.distribution import PYTHON, VERSION
from atoll.backends.pyodide.launch import BASE, Parts, make_spec, parked
from atoll.config import SandboxConfig
from atoll.errors import BackendUnavailableError, SandboxError, SandboxLostError, UnsupportedError
from atoll.files.base import Files
from atoll.files.types import FileError, checked
from atoll.guest.shared.rpc import MessageTooLargeError
from atoll.jail.measure import probe
from atoll.jail.supervisor.client import Lease
from atoll.launch import library
from atoll.launch.guest_handle import request_guest
from atoll.launch.handshake import handshake
from atoll.launch.launcher import Launcher
from atoll.launch.sandbox import GuestSandbox
from atoll.packages.held import HeldPackages
from atoll.policy import Capability, Isolation
from atoll.sandbox.availability import Availability
from atoll.sandbox.session import MAX_FILE_IN_MESSAGE

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping

    from atoll.backends.pyodide.deno import Deno
    from atoll.backends.pyodide.distribution import Distribution
    from atoll.guest.shared.messages import Json, StateParams
    from atoll.jail.measure.probe import HostReport
    from atoll.launch.guest_handle import StartingGuest
    from atoll.launch.handshake import RunningGuest
    from atoll.packages.store import Environment
    from atoll.sandbox.channel import HostChannel
    from atoll.sandbox.context import Context
    from atoll.types import EndReport


CHUNK = 1 << 18
ABORTED = 128 + signal.SIGABRT
"""The driver's exit code if the guest is broken, not ended by itself; see driver.mjs."""


class DenoLease(Lease):
    """Sends a guest bytes where other backends pass a descriptor."""

    def __init__(
        self, sock: socket.socket, channel: HostChannel, context_bytes: int, *, listens: bool
    ) -> None:
        super().__init__(sock)
        self._channel, self._context_bytes, self._listens = channel, context_bytes, listens
        self._pumps: set[asyncio.Task[None]] = set()
        self._into: Callable[[bytes], None] | None = None

    def interrupt(self) -> None:
        """Tell the driver to interrupt the guest; kill the process if it does not listen.

        By a line, because a signal could overtake the request to interrupt.
        """
        if self._listens:
            self._channel.send_bytes(b"interrupt\n")
        else:
            self.kill()

    def give(self, *fds: int) -> None:
        """Send the content of a file or pipe."""
        for fd in fds:
            self._start(os.dup(fd))

    def collect(self, into: Callable[[bytes], None] | None) -> None:
        """Pass on the bytes that the guest sends from now on."""
        self._into = into

    def take(self, data: bytes) -> None:
        """Take bytes of the guest for the present collector."""
        if self._into is not None:
            self._into(data)

    async def close(self) -> None:
        """End the process, and drop what was not sent yet."""
        for pump in self._pumps:
            pump.cancel()
        await super().close()

    def _finish(self, report: EndReport) -> None:
        """Report a WebAssembly trap as a crash, although Deno survived it."""
        if report.exit == ABORTED:
            report = dataclasses.replace(report, exit=None, signal=signal.SIGABRT)
        super()._finish(report)

    def _start(self, fd: int) -> None:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        pump = asyncio.ensure_future(self._pump_file(fd) if regular else self._pump_pipe(fd))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        pump.add_done_callback(lambda _: os.close(fd))

    async def _pump_file(self, fd: int) -> None:
        """Send the context without its terminating NUL."""
        for at in range(0, self._context_bytes, CHUNK):
            await self._forward(os.pread(fd, min(CHUNK, self._context_bytes - at), at))
        await self._forward(b"")

    async def _pump_pipe(self, fd: int) -> None:
        while data := await asyncio.to_thread(os.read, fd, CHUNK):
            await self._forward(data)
        await self._forward(b"")

    async def _forward(self, data: bytes) -> None:
        self._channel.send_bytes(b"bytes %d\n" % len(data) + data)
        await self._channel.drained()


HINT = "atoll doctor --backend native tells what the host would have to allow."
_SETUP = "on first use; now: atoll pyodide setup"


def describe(
    runner: Deno, pyodide: Distribution | None, host: HostReport, *, worker: bool
) -> Availability:
    """Return the report: usable if there are Deno and a supervisor."""
    if host.level < Isolation.CONFINED:
        return Availability(usable=False, reason=no_supervisor(host), hint=HINT)
    return Availability(
        usable=True,
        isolation=Isolation.VIRTUAL,
        limits=_limits(host, worker=worker),
        details={
            "deno": f"{runner.path} ({runner.version})",
            "pyodide": f"{VERSION} in {pyodide.folder}" if pyodide else f"fetched {_SETUP}",
            "python": ".".join(map(str, PYTHON)),
            "around deno": _walls(host),
            "wheels": ", ".join(path.name.partition("-")[0] for path in wheels.installed())
            or "none; atoll pyodide install NAME",
        },
    )


def no_supervisor(host: HostReport) -> str:
    """Return why Deno cannot be confined here."""
    return f"Deno cannot be kept in: {host.failure}"


def _walls(host: HostReport) -> str:
    if host.level >= Isolation.JAILED:
        return "a jail, as around a native guest"
    return f"Landlock, seccomp, rlimits; no jail ({host.failure})"


def _limits(host: HostReport, *, worker: bool) -> dict[str, str]:
    group = host.cgroup_version
    counted = f"cgroup v{group}" if group else "the supervisor's meter"
    return {
        "time": "interrupt, then kill" if worker else "kill",
        "memory": f"pages of wasm memory; {counted} around Deno",
        "processes": "there are none",
        "cpu": counted,
        "disk": f"files are in memory and counted; {counted} around Deno",
        "file size": "counted",
        "output": "cut by the host",
    }


FILES_TIMEOUT_MS = 30_000
GRACE_SECONDS = 1.0
"""Extra seconds: an interrupt passes two threads, and Python checks for it now and then."""
_MISSING = {
    Capability.NETWORK,
    Capability.PORTS,
    Capability.HOST_FOLDER,
    Capability.SHARED_CONTEXT,
    Capability.SHELL,
    Capability.PROCESSES,
    Capability.INTERPRETER,
    Capability.IMAGES,
    Capability.FOLDERS,
    Capability.SUBPROCESS,
    Capability.THREADS,
    Capability.FORK,
}


class PyodideLauncher(Launcher):
    """Starts a Deno in a jail, with Pyodide in it."""

    backend: ClassVar[str] = deno.BACKEND
    _parts: Parts
    _walls: Isolation
    _environment: Environment | None = None

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self._packages = HeldPackages()

    async def prepare(self) -> Isolation:
        """Find Deno, Pyodide and the packages; Deno itself has to be confined."""
        config = self.config
        if config.workspace is not None or config.policy.mounts:
            raise UnsupportedError(self.backend, Capability.HOST_FOLDER)
        if config.python is not None:
            raise UnsupportedError(self.backend, Capability.INTERPRETER)
        self._environment = await self._packages.find(config, wheels.target)
        self._parts = await asyncio.to_thread(_find_parts, config, self._environment)
        host = await probe.host()
        if host.level < Isolation.CONFINED:
            raise BackendUnavailableError(self.backend, no_supervisor(host), HINT)
        self._walls, self.level = host.level, Isolation.VIRTUAL
        return self.level

    async def launch(
        self, config: SandboxConfig, context: Any, shared: Context | None
    ) -> RunningGuest:
        """Start a guest in a process that was parked, or in a new one."""
        if self._parts.gone:
            self._parts = await asyncio.to_thread(_find_parts, config, self._environment)
        size = shared.size - shared.width if shared else 0
        spec = make_spec(config, self._parts, self._walls, size)
        make_lease = functools.partial(DenoLease, context_bytes=size, listens=config.use_worker)

        async def start(process: StartingGuest) -> RunningGuest:
            handle = process.open(make_lease)
            handle.channel.on_output = _discard
            guest = await handshake(
                handle, config, context, shared, env=config.policy.env, proxied=False
            )
            guest.session.grace_seconds = GRACE_SECONDS
            handle.channel.on_output = functools.partial(_on_stream, guest)
            return guest

        try:
            process = parked.take(spec)
            parked.refill()
            return await start(process)
        except SandboxLostError:  # the parked process was killed; nothing had run in it
            return await start(request_guest(spec))

    @property
    def version(self) -> tuple[int, ...]:
        """Pyodide's version of Python."""
        return distribution.PYTHON

    def state_params(self) -> StateParams:
        """Return how large a state may be, and where the guest finds cloudpickle."""
        return {
            "max_bytes": self.config.max_state_bytes,
            "cloudpickle": library.folder_in_guest(jailed=True),
        }

    def close(self) -> None:
        """Release the packages."""
        self._packages.close()


def _on_stream(guest: RunningGuest, stream: int, data: bytes) -> None:
    """Dispatch what a guest sends beside its answers; see js/wire.mjs."""
    if stream in (1, 2):
        guest.session.take_output(stream, data)
    elif stream == 3 and isinstance(guest.lease, DenoLease):
        guest.lease.take(data)


class PyodideSandbox(GuestSandbox):
    """Python in a worker of Deno without any permission; Deno itself runs in a jail."""

    backend: ClassVar[str] = deno.BACKEND
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - _MISSING
    runtime_memory: ClassVar[int] = BASE

    launcher: ClassVar[type[Launcher]] = PyodideLauncher

    def __new__(cls, config: SandboxConfig | None = None) -> PyodideSandbox:  # noqa: PYI034
        """Return a DirectPyodideSandbox if the configuration asks for no worker."""
        direct = config is not None and not config.use_worker
        return super().__new__(DirectPyodideSandbox if direct else cls)

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Return whether this backend can run here, and how it is confined."""
        try:
            runner = await asyncio.to_thread(deno.find)
            pyodide = await asyncio.to_thread(distribution.installed)
        except BackendUnavailableError as exc:
            return Availability(usable=False, reason=exc.reason, hint=exc.hint)
        return describe(runner, pyodide, await probe.host(), worker=config.use_worker)

    @property
    def files(self) -> Files:
        """The guest's files, read and written by the guest: they are in its memory."""
        return GuestFiles(self._workspace)

    async def _workspace(self, operation: str, params: Mapping[str, Any]) -> object:
        async with self._in_guest() as guest:
            limit = min(self._config.timeout_ms, FILES_TIMEOUT_MS)
            return await guest.session.workspace(operation, params, limit)


class DirectPyodideSandbox(PyodideSandbox):
    """Python in Deno's main thread: it cannot be interrupted; a timeout kills the process."""

    capabilities: ClassVar[frozenset[Capability]] = PyodideSandbox.capabilities - {
        Capability.CANCEL
    }

    def __init__(self, config: SandboxConfig | None = None) -> None:
        given = config or SandboxConfig(backend=deno.BACKEND)
        super().__init__(dataclasses.replace(given, use_worker=False))

    async def cancel(self) -> None:
        """Do nothing: only the timeout can end the code."""

    async def destroy(self) -> None:
        """Kill the process."""
        self._open = False
        if self._guest is not None:
            self._guest.lease.kill()
        await super().destroy()


class GuestFiles(Files):
    """Files that only the guest itself can reach: it is asked, and not believed."""

    def __init__(self, ask: Callable[[str, Mapping[str, Any]], Awaitable[object]]) -> None:
        self._request = ask

    async def _ask(self, operation: str, params: Json) -> Json:
        if len(params.get("data", b"")) > MAX_FILE_IN_MESSAGE:
            return {"error": FileError.TOO_LARGE}
        try:
            return checked(operation, await self._request(operation, params))
        except MessageTooLargeError as exc:
            raise SandboxError(f"{operation}: {exc}") from None


def _find_parts(config: SandboxConfig, environment: Environment | None) -> Parts:
    runner = deno.find()
    pyodide = index.find(config.index_url)
    return Parts(runner, pyodide, image.find(pyodide, runner), wheels.with_packages(environment))


def _discard(_stream: int, _data: bytes) -> None:
    """Ignore output: nothing runs yet."""

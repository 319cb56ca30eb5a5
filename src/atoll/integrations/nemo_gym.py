"""A sandbox provider for NeMo Gym, found by its entry point: `{"atoll": {"backend": "native"}}`.

Sandboxes end with the process that made them, with `ttl_s`, or with close(). With the backend
`remote` they live in a service: serialize() describes one, and connect() reaches it from elsewhere.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.concurrency.portal import Portal
from atoll.errors import AtollError, ConfigError
from atoll.factory import merge
from atoll.integrations.common import missing
from atoll.integrations.rollouts import MIB, RolloutBox, Wanted, check_user, run

try:
    from nemo_gym.sandbox.providers.base import (
        SandboxCreateError,
        SandboxExecResult,
        SandboxHandle,
        SandboxStatus,
    )
except ImportError as exc:
    raise ImportError(missing("nemo-gym", "nemo_gym")) from exc
try:
    from nemo_gym.sandbox.providers.base import SandboxEndpoint, SandboxPtyError
except ImportError:  # 0.4.0, which asks for neither endpoints nor terminals
    SandboxEndpoint, SandboxPtyError = dict, RuntimeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
    from typing import Self, TypeVar

    from nemo_gym.sandbox.providers.base import SandboxPtySpec, SandboxSpec

    from atoll.integrations.rollouts import BoxProcess

    T = TypeVar("T")

NO_EXIT_CODE = 125
"""The return code of a command that has none: NeMo's providers use this number."""
_SHELL = ["sh", "-c", "command -v bash > /dev/null && exec bash; exec sh"]


@dataclass(slots=True)
class _Held:
    """A sandbox, and the terminals in it that this process has opened."""

    box: RolloutBox
    terminals: dict[str, AtollPty] = field(default_factory=dict)
    closed: bool = False


class AtollProvider:
    """Makes sandboxes of Atoll. `image` replaces those that specs name; "host" stands for none.

    `network` has the hosts that sandboxes may reach, `options` further ones of create_sandbox.
    """

    name = "atoll"

    def __init__(
        self,
        *,
        backend: str = "auto",
        image: str | None = None,
        network: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._image, self._network = image, list(network)
        self._options = {"backend": backend, **(options or {})}
        self._held: list[_Held] = []

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Open a sandbox; SandboxCreateError says why there is none."""
        if spec.resources.gpu:
            raise SandboxCreateError("a sandbox of Atoll has no GPU: leave resources.gpu out")
        memory, disk = spec.resources.memory_mib, spec.resources.disk_gib
        wanted = Wanted(
            image=self._image or spec.image,
            workdir=spec.workdir,
            folders=sorted({str(Path(path).parent) for path in spec.files if path[:1] == "/"}),
            env=spec.env,
            memory_bytes=memory * MIB if memory else None,
            disk_bytes=disk * 1024 * MIB if disk else None,
            network=self._network,
            options={**self._options, **spec.provider_options},
        )
        try:
            async with asyncio.timeout(spec.ready_timeout_s):
                box = await RolloutBox.open(wanted)
        except (AtollError, OSError, TimeoutError) as exc:
            raise SandboxCreateError(f"no sandbox for {spec.image or 'this task'}: {exc}") from exc
        held = _Held(box)
        self._held.append(held)
        if spec.ttl_s is not None:
            Portal.shared().start(_expire(held, spec.ttl_s))
        if spec.entrypoint:
            await box.start(list(spec.entrypoint), stdin=False)
        return self._handle(held, _session(box) or secrets.token_hex(8))

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a line of bash. What the sandbox could not do is a result with an error_type."""
        try:
            done = await _box(handle).run(command, cwd=cwd, env=env, timeout=timeout_s, user=user)
        except AtollError as exc:
            return SandboxExecResult(None, str(exc), NO_EXIT_CODE, "sandbox")
        if done.timed_out:
            told = f"{done.err}\nthe command took longer than {timeout_s} s"
            return SandboxExecResult(done.out, told, NO_EXIT_CODE, "timeout")
        return SandboxExecResult(done.out, done.err, done.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy a file into the sandbox."""
        data = await asyncio.to_thread(Path(source_path).read_bytes)
        await _box(handle).write(target_path, data)

    async def download_file(
        self, handle: SandboxHandle, source_path: str, target_path: Path
    ) -> None:
        """Copy a file out of the sandbox."""
        data = await _box(handle).read(source_path)
        await asyncio.to_thread(_write, Path(target_path), data)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Return whether the sandbox answers."""
        if handle.raw.closed:
            return SandboxStatus.STOPPED
        return SandboxStatus.RUNNING if await _box(handle).is_alive() else SandboxStatus.ERROR

    async def close(self, handle: SandboxHandle) -> None:
        """End the sandbox with all that runs in it."""
        await run(_close(handle.raw))

    async def aclose(self) -> None:
        """End the sandboxes that this provider has made and that are left."""
        while self._held:
            await run(_close(self._held.pop()))

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        """Return the URL of a server in the sandbox, on this machine's loopback."""
        return SandboxEndpoint(endpoint=await _box(handle).url(port))

    async def create_pty(self, handle: SandboxHandle, spec: SandboxPtySpec) -> AtollPty:
        """Start a terminal, or with pty=False a process with pipes."""
        try:
            check_user(spec.user)
        except ConfigError as exc:
            raise ValueError(str(exc)) from exc
        options = {"cwd": spec.cwd, "env": spec.env}
        size = (spec.rows, spec.cols) if spec.pty else False
        try:
            started = await _box(handle).start(spec.command or _SHELL, pty=size, **options)
        except AtollError as exc:
            raise SandboxPtyError(f"no terminal: {exc}") from exc
        made = AtollPty(started, "pty" if spec.pty else "pipe", owner=True)
        handle.raw.terminals[made.session_id] = made
        return made

    async def attach_pty(
        self,
        handle: SandboxHandle,
        session_id: str,
        *,
        takeover: bool = True,
        since: int | None = None,
    ) -> AtollPty:
        """Attach to a terminal by its id; `since` is the offset of the first byte to read."""
        holder = handle.raw.terminals.get(session_id)
        if holder is not None and not holder.closed:
            if not takeover:
                raise SandboxPtyError(f"the terminal {session_id} is held: pass takeover=True")
            holder.evict()
        try:
            found = await _box(handle).attach(session_id, since)
        except AtollError as exc:
            raise SandboxPtyError(str(exc)) from exc
        made = AtollPty(found, "pty" if found.is_terminal else "pipe", owner=False)
        handle.raw.terminals[session_id] = made
        return made

    async def serialize_handle(
        self,
        handle: SandboxHandle,
        *,
        scope: str | None = None,  # noqa: ARG002 - NeMo's signature
    ) -> dict[str, Any]:
        """Describe a sandbox of a service, without the key that it takes to reach it."""
        box = _box(handle)
        if _session(box) is None:
            raise RuntimeError(
                f"a sandbox of the backend {box.box.backend!r} ends with its process: configure "
                f"backend='remote' for one that another process can connect to"
            )
        return {"sandbox_id": handle.sandbox_id, "workdir": box.workdir}

    async def connect(self, descriptor: Mapping[str, Any]) -> SandboxHandle:
        """Return a handle for a sandbox of the service that this provider is configured for."""
        from atoll.backends.remote.sandbox import RemoteSandbox  # noqa: PLC0415 - an extra

        options = {**self._options, "backend": "remote"}
        session = str(descriptor["sandbox_id"])
        remote = RemoteSandbox(merge(None, options), session=session)
        try:
            await run(remote.initialize())
        except AtollError as exc:
            raise RuntimeError(f"no sandbox {session!r}: {exc}") from exc
        box = RolloutBox(remote, str(descriptor.get("workdir") or "/app"))
        return self._handle(_Held(box), session)

    def _handle(self, held: _Held, ident: str) -> SandboxHandle:
        return SandboxHandle(sandbox_id=ident, provider_name=self.name, raw=held)


class AtollPty:
    """One terminal, or one process with pipes."""

    def __init__(self, process: BoxProcess, mode: str, *, owner: bool) -> None:
        self.session_id, self.mode = process.id, mode
        self._process, self._owner = process, owner
        self.closed = self._evicted = False

    def evict(self) -> None:
        """Give the terminal up to a client that has attached to it."""
        self._evicted = True

    async def read(self, *, timeout_s: float | None = None) -> bytes:
        """Return the next output; no bytes at the end."""
        return await self._ask(self._process.read("stdout", timeout_s))

    async def read_stderr(self, *, timeout_s: float | None = None) -> bytes:
        """Return the next of its standard error, which a terminal does not have."""
        return await self._ask(self._process.read("stderr", timeout_s))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def write(self, data: bytes) -> None:
        """Write to its input."""
        await self._ask(self._process.write(data))

    async def resize(self, rows: int, cols: int) -> None:
        """Change the terminal's size."""
        await self._ask(self._process.resize(rows, cols))

    async def send_signal(self, signal: str) -> None:
        """Send a signal to the process and its group."""
        await self._ask(self._process.signal(signal))

    async def wait_exit(self, *, timeout_s: float | None = None) -> int:
        """Return the exit code once the process has ended."""
        return await self._ask(self._process.wait(timeout_s))

    async def close(self) -> None:
        """Kill a process that this client has started; leave one that it has attached to."""
        if not self.closed and self._owner and not self._evicted:
            await self._process.kill()
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        if self.closed or self._evicted:
            work.close()
            told = "was taken over by another client" if self._evicted else "is closed"
            raise SandboxPtyError(f"the terminal {self.session_id} {told}")
        try:
            return await work
        except AtollError as exc:
            raise SandboxPtyError(str(exc)) from exc


def _box(handle: SandboxHandle) -> RolloutBox:
    held: _Held = handle.raw
    return held.box


def _session(box: RolloutBox) -> str | None:
    """Return the name of a service's session; None for a sandbox of this process."""
    found = getattr(box.box, "session", None)
    return found if isinstance(found, str) else None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


async def _close(held: _Held) -> None:
    held.closed = True
    await held.box.box.destroy()


async def _expire(held: _Held, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await _close(held)

"""A sandbox client for SandboxAgents of the OpenAI Agents SDK, beside `as_tool`.

    run = RunConfig(sandbox=SandboxRunConfig(client=AtollSandboxClient()))

Commands, terminals, files and ports of an agent's workspace are those of a sandbox of Atoll. The
sandbox ends with delete(), or with its process; the SDK's snapshots keep the workspace.
"""

from __future__ import annotations

import asyncio
import io
import shlex
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from atoll.errors import AtollError
from atoll.integrations.common import missing
from atoll.integrations.rollouts import RolloutBox, Wanted

try:
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        ExposedPortUnavailableError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
        WorkspaceStartError,
    )
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session import SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.pty_output import collect_pty_output
    from agents.sandbox.session.pty_types import (
        PtyExecUpdate,
        allocate_pty_process_id,
        clamp_pty_yield_time_ms,
        resolve_pty_write_yield_time_ms,
    )
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
    from agents.sandbox.snapshot import resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint
except ImportError as exc:
    raise ImportError(missing("openai-agents", "openai_sandbox")) from exc

if TYPE_CHECKING:
    from agents.sandbox.session import SandboxSession
    from agents.sandbox.session.dependencies import Dependencies
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec
    from agents.sandbox.types import User

    from atoll.integrations.rollouts import BoxProcess

DRAFT = "/tmp/.atoll-workspace.tar"  # noqa: S108 - the guest's own


class AtollSandboxClientOptions(BaseSandboxClientOptions):  # type: ignore[misc]
    """The sandbox of a session: an image or this machine's programs, and hosts it may reach."""

    type: Literal["atoll"] = "atoll"
    image: str | None = None
    network: tuple[str, ...] = ()
    exposed_ports: tuple[int, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Further options of create_sandbox."""


class AtollSandboxSessionState(SandboxSessionState):  # type: ignore[misc]
    """What it takes to open a session's sandbox again."""

    type: Literal["atoll"] = "atoll"
    image: str | None = None
    network: tuple[str, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012


@dataclass(slots=True)
class _Terminal:
    """A process whose output the model has not seen yet."""

    process: BoxProcess
    tty: bool
    chunks: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    notify: asyncio.Event = field(default_factory=asyncio.Event)
    pump: asyncio.Task[None] | None = None

    async def read_on(self) -> None:
        async for piece in self.process.output():
            self.chunks.append(piece.data)
            self.notify.set()
        self.notify.set()

    @property
    def ended(self) -> bool:
        return self.pump is not None and self.pump.done()


class AtollSandboxSession(BaseSandboxSession):  # type: ignore[misc]
    """One sandbox, with the workspace at the manifest's root."""

    state: AtollSandboxSessionState

    def __init__(self, state: AtollSandboxSessionState) -> None:
        self.state = state
        self._box: RolloutBox | None = None
        self._terminals: dict[int, _Terminal] = {}

    async def _prepare_backend_workspace(self) -> None:
        if await self.running():
            return
        root = self.state.manifest.root
        environment = await self.state.manifest.environment.resolve()
        wanted = Wanted(
            image=self.state.image,
            workdir=root,
            folders=[grant.path for grant in self.state.manifest.extra_path_grants],
            env=environment,
            network=self.state.network,
            options=self.state.options,
        )
        try:
            self._box = await RolloutBox.open(wanted)
        except (AtollError, OSError) as exc:
            raise WorkspaceStartError(path=Path(root), cause=exc) from exc

    def supports_pty(self) -> bool:
        """Terminals are there."""
        return True

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        """Return the command; every user is the guest, so no sudo is put before it."""
        del user
        prepared: list[str] = super()._prepare_exec_command(*command, shell=shell, user=None)
        return prepared

    async def _exec_internal(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's signature
    ) -> ExecResult:
        try:
            done = await self._opened.run([str(part) for part in command], timeout=timeout)
        except AtollError as exc:
            raise ExecTransportError(command=command, cause=exc) from exc
        if done.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        return ExecResult(stdout=done.stdout, stderr=done.stderr, exit_code=done.exit_code)

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - the SDK's signature
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a process, and return what it prints within a time."""
        argv = self._prepare_exec_command(*command, shell=shell, user=user)
        try:
            process = await self._opened.start(argv, pty=tty, stdin=tty)
        except AtollError as exc:
            raise ExecTransportError(command=command, cause=exc) from exc
        made = _Terminal(process, tty)
        made.pump = asyncio.create_task(made.read_on())
        ident = allocate_pty_process_id({*self._terminals})
        self._terminals[ident] = made
        waited = clamp_pty_yield_time_ms(int((10 if yield_time_s is None else yield_time_s) * 1000))
        return await self._update(ident, made, waited, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Write to a terminal, and return what it prints within a time."""
        found = self._resolve_pty_session_entry(
            pty_processes=self._terminals, session_id=session_id
        )
        if chars and not found.tty:
            raise RuntimeError("stdin is not available for this process")
        if chars and not found.ended:
            await found.process.write(chars.encode())
        waited = resolve_pty_write_yield_time_ms(
            yield_time_ms=int((0.25 if yield_time_s is None else yield_time_s) * 1000),
            input_empty=not chars,
        )
        return await self._update(session_id, found, waited, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """Kill every process that pty_exec_start has started."""
        while self._terminals:
            _, one = self._terminals.popitem()
            if one.pump is not None:
                one.pump.cancel()
            await one.process.kill()

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Return a file's bytes as a stream."""
        del user
        found = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self._opened.read(str(found)))
        except FileNotFoundError as exc:
            raise WorkspaceReadNotFoundError(path=Path(path), cause=exc) from exc
        except (AtollError, OSError) as exc:
            raise WorkspaceArchiveReadError(path=Path(path), cause=exc) from exc

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file, and make its parents."""
        del user
        found = await self._validate_path_access(path, for_write=True)
        given = data.read()
        try:
            await self._opened.write(
                str(found), given.encode() if isinstance(given, str) else bytes(given)
            )
        except (AtollError, OSError) as exc:
            raise WorkspaceArchiveWriteError(path=Path(path), cause=exc) from exc

    async def running(self) -> bool:
        """Return whether the sandbox answers."""
        return self._box is not None and await self._box.is_alive()

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar."""
        root = self.state.manifest.root
        left_out = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        packed = f"tar {left_out} -C {shlex.quote(root)} -cf {DRAFT} ."
        try:
            done = await self._opened.run(packed, cwd="/")
            if done.exit_code != 0:
                raise WorkspaceArchiveReadError(path=Path(root), context={"stderr": done.err})
            return io.BytesIO(await self._opened.read(DRAFT))
        except (AtollError, OSError) as exc:
            raise WorkspaceArchiveReadError(path=Path(root), cause=exc) from exc
        finally:
            await self._opened.run(["rm", "-f", DRAFT], cwd="/")

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar into the workspace, inside the sandbox."""
        root = self.state.manifest.root
        unpack = ["tar", "-x", "-f", "-", "--no-same-owner", "-C", root]
        try:
            await self._opened.make_folders([root])
            done = await self._opened.run(unpack, stdin=bytes(data.read()), cwd="/")
        except (AtollError, OSError) as exc:
            raise WorkspaceArchiveWriteError(path=Path(root), cause=exc) from exc
        if done.exit_code != 0:
            raise WorkspaceArchiveWriteError(path=Path(root), context={"stderr": done.err})

    async def close(self) -> None:
        """End the sandbox; opening it again needs start()."""
        await self.pty_terminate_all()
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            url = urlsplit(await self._opened.url(port))
        except AtollError as exc:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"backend": "atoll"},
                cause=exc,
            ) from exc
        return ExposedPortEndpoint(host=url.hostname or "", port=url.port or 0)

    async def _update(
        self, ident: int, one: _Terminal, wait_ms: int, max_tokens: int | None
    ) -> PtyExecUpdate:
        output, tokens, ended = await collect_pty_output(
            output_chunks=one.chunks,
            output_lock=one.lock,
            output_notify=one.notify,
            is_done=lambda: one.ended,
            yield_time_ms=wait_ms,
            max_output_tokens=max_tokens,
        )
        code = await one.process.wait() if ended else None
        if ended:
            self._terminals.pop(ident, None)
        return PtyExecUpdate(
            process_id=None if ended else ident,
            output=output,
            exit_code=code,
            original_token_count=tokens,
        )

    @property
    def _opened(self) -> RolloutBox:
        if self._box is None:
            root = Path(self.state.manifest.root)
            raise WorkspaceStartError(path=root, context={"reason": "the session is not started"})
        return self._box


class AtollSandboxClient(BaseSandboxClient[AtollSandboxClientOptions | None]):  # type: ignore[misc]
    """Makes sessions whose sandboxes are Atoll's."""

    backend_id = "atoll"
    supports_default_options = True

    def __init__(
        self,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: AtollSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Return a session; its start() opens the sandbox."""
        given, session_id = options or AtollSandboxClientOptions(), uuid.uuid4()
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        _check_manifest(manifest)
        state = AtollSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=given.exposed_ports,
            image=given.image,
            network=given.network,
            options=given.options,
        )
        return self._wrap_session(AtollSandboxSession(state), instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a session's sandbox."""
        inner = session._inner  # noqa: SLF001 - as the SDK's own clients do
        if not isinstance(inner, AtollSandboxSession):
            raise TypeError("AtollSandboxClient.delete expects an AtollSandboxSession")
        await inner.close()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return a session that gets its workspace from the snapshot: its sandbox is new."""
        if not isinstance(state, AtollSandboxSessionState):
            raise TypeError("AtollSandboxClient.resume expects an AtollSandboxSessionState")
        state.assert_path_grants_rebound()
        _check_manifest(state.manifest)
        return self._wrap_session(AtollSandboxSession(state), instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return the state that a payload describes."""
        return self._deserialize_session_state_payload(payload, AtollSandboxSessionState)


def _check_manifest(manifest: Manifest) -> None:
    """Raise ValueError for what a sandbox does not give."""
    if manifest.users or manifest.groups:
        raise ValueError("a sandbox of Atoll has one user: leave users and groups out")
    if any(grant.host_path is not None for grant in manifest.extra_path_grants):
        raise ValueError(
            "AtollSandboxClient does not support sandbox path grant host_path: mount the folder "
            "with options={'policy': {'mounts': [(host, path)]}}"
        )

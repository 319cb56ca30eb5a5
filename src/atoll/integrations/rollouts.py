"""A sandbox as frameworks for training and evaluation use one.

Commands run beside each other, files are at any path, ports lead inside. Shared by the plugs for
Harbor, NeMo Gym, OpenEnv, verifiers and OpenAI Agents.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.concurrency.portal import Portal
from atoll.errors import AtollError, ConfigError
from atoll.factory import merge, open_sandbox
from atoll.files.types import FileError
from atoll.policy import Capability
from atoll.sandbox.command import USERS
from atoll.sandbox.process import no_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
    from typing import Self

    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.command import Command
    from atoll.sandbox.process import OutputPiece, Process, StartOptions

T = TypeVar("T")
HOST = "host"
"""The name of an image that means this machine's own programs, without an image."""
WORKDIR = "/app"
MAX_OUTPUT = 16 << 20
"""Bytes of each stream of a command that are kept; what follows is read and dropped."""
MIB = 1 << 20
NEEDED = frozenset({Capability.PROCESSES, Capability.WORKSPACE, Capability.SHELL})
_LIMITS = {"memory_bytes": 2048 * MIB, "disk_bytes": 1024 * MIB, "file_size_bytes": 512 * MIB}
"""For a task that names none; a service gives as much to any key."""
_OS_ERRORS: dict[FileError, type[OSError]] = {
    FileError.FILE_NOT_FOUND: FileNotFoundError,
    FileError.PERMISSION_DENIED: PermissionError,
    FileError.IS_DIRECTORY: IsADirectoryError,
}
_OWN = ("/app", "/tmp", "/dev/shm", "/home/guest", "/mnt/data")  # noqa: S108 - the guest's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The sandbox that a task of a framework asks for."""

    image: str | None = None
    """A container image; None or "host" for this machine's programs."""
    workdir: str | None = None
    """Where commands run; None: the image's WORKDIR, or /app."""
    folders: Sequence[str] = ()
    """Folders that must be writable; with an image, every folder is."""
    env: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    network: Sequence[str] = ()
    """Hosts that may be reached; `*` for all public ones."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of create_sandbox, which win."""

    def settings(self) -> dict[str, Any]:
        """Return options of create_sandbox."""
        given = dict(self.options)
        limits: dict[str, Any] = {**_LIMITS, "env": dict(self.env)}
        for name in ("memory_bytes", "disk_bytes"):
            if getattr(self, name) is not None:
                limits[name] = getattr(self, name)
        limits["file_size_bytes"] = min(limits["file_size_bytes"], limits["disk_bytes"])
        made: dict[str, Any] = {"network": list(self.network) or None}
        if self.image in (None, HOST):
            limits["folders"] = _outermost([*self.folders, self.workdir or WORKDIR])
        else:
            made |= {"image": self.image, "writable_root": True}
        policy = {**limits, **dict(given.pop("policy", {}))}
        return {**made, **given, "policy": policy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a command ended, and what it printed."""

    exit_code: int
    """128 and the number of the signal that ended it, if one did."""
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False

    @property
    def out(self) -> str:
        """Its standard output as text."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        """Its standard error as text."""
        return self.stderr.decode("utf-8", "replace")


class RolloutBox:
    """One sandbox of one rollout. Its methods may be awaited in any event loop."""

    def __init__(self, box: BaseSandbox, workdir: str = WORKDIR) -> None:
        self.box, self.workdir = box, workdir

    @classmethod
    async def open(cls, wanted: Wanted) -> Self:
        """Open a sandbox and make its working folder; nothing is left of one that fails."""
        made = cls(await run(open_sandbox(merge(None, wanted.settings()), NEEDED)))
        try:
            found = await asyncio.to_thread(_workdir, wanted.image)
            made.workdir = wanted.workdir or found
            await made.make_folders([made.workdir, *wanted.folders])
        except BaseException:
            await made.close()
            raise
        return made

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it is a result, not an exception
        user: str | int | None = None,
    ) -> Finished:
        """Run a command to its end; others may run meanwhile. Cancelling the call kills it."""
        check_user(user)
        options: StartOptions = {
            "cwd": cwd or self.workdir,
            "env": env,
            "stdin": stdin is not None,
        }
        return await run(_finish(self.box, command, options, stdin, timeout))

    async def start(self, command: Command, **options: Any) -> BoxProcess:
        """Start a process; `options` are those of BaseSandbox.start."""
        options["cwd"] = options.get("cwd") or self.workdir
        return BoxProcess(await run(self.box.start(command, **options)))

    async def attach(self, ident: str, since: int | None) -> BoxProcess:
        """Return a process by its id, to be read from the offset `since` on, or from now on."""
        known = {process.id: process for process in await run(self.box.processes())}
        if ident not in known:
            raise no_process(ident)
        await run(known[ident].skip_to(since))
        return BoxProcess(known[ident])

    async def make_folders(self, paths: Sequence[str]) -> None:
        """Make folders with their parents; OSError if one cannot be made."""
        done = await self.run(["mkdir", "-p", "--", *paths], cwd="/")
        if done.exit_code != 0:
            raise PermissionError(done.err.strip())

    async def write(self, path: str, data: bytes) -> None:
        """Write a file and make its parents; a relative path is below the working folder."""
        (done,) = await run(self.box.files.upload([(self._absolute(path), data)], absolute=True))
        if done.error is not None:
            raise os_error(done.error, path)

    async def read(self, path: str) -> bytes:
        """Return a file's bytes; OSError if it cannot be read."""
        (done,) = await run(self.box.files.download([self._absolute(path)], absolute=True))
        if done.content is None:
            raise os_error(done.error or FileError.IO_ERROR, path)
        return done.content

    async def url(self, port: int, local_port: int | None = None) -> str:
        """Return a URL on this machine's loopback that leads to a port of the sandbox."""
        return await run(self.box.port(port, local_port=local_port))

    async def is_alive(self) -> bool:
        """Return whether the sandbox still answers."""
        try:
            await run(self.box.processes())
        except AtollError:
            return False
        return True

    async def close(self) -> None:
        """End the sandbox with all that runs in it. Calling it again does nothing."""
        await run(self.box.destroy())

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.workdir}/{path}"


class BoxProcess:
    """A process of a RolloutBox, whose methods may be awaited in any event loop."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def exit_code(self) -> int | None:
        """Its exit code as far as known; None while it runs."""
        return self._process.info.exit_code

    @property
    def id(self) -> str:
        """Its name in its sandbox."""
        return self._process.id

    @property
    def is_terminal(self) -> bool:
        """Whether it has a terminal in place of pipes."""
        return self._process.info.pty

    async def read(self, stream: Any = "stdout", timeout_s: float | None = None) -> bytes:
        """Return the next bytes; none at the end. TimeoutError if nothing comes in time."""
        limit = None if timeout_s is None else max(timeout_s, 0.001) * 1000
        return await run(self._process.read(stream, timeout_ms=limit))

    async def output(self) -> AsyncIterator[OutputPiece]:
        """Yield what it prints, until it has ended."""
        pieces = self._process.output()
        while (piece := await run(_next(pieces))) is not None:
            yield piece

    async def write(self, data: bytes, *, end: bool = False) -> None:
        """Write to its input; `end` closes that."""
        await run(self._process.write(data, end=end))

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        await run(self._process.resize(rows, columns))

    async def signal(self, number: int | str) -> None:
        """Send a signal to it and its group."""
        await run(self._process.signal(number))

    async def kill(self) -> None:
        """Kill it and its group, if it still runs."""
        if await self.poll() is None:
            await run(self._process.kill())

    async def wait(self, timeout_s: float | None = None) -> int:
        """Return its exit code once it has ended; TimeoutError if it has not in time."""
        limit = None if timeout_s is None else max(timeout_s, 0.001) * 1000
        return (await run(self._process.wait(timeout_ms=limit))).exit_code or 0

    async def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        try:
            return await self.wait(0.001)
        except TimeoutError:
            return None


async def run(work: Coroutine[Any, Any, T]) -> T:
    """Run work in Atoll's own loop: frameworks use a sandbox from several."""
    return await Portal.shared().run_from_loop(work)


def check_user(user: str | int | None) -> None:
    """Raise ConfigError for a user that no sandbox has; root is accepted, and pretended."""
    known = int(user) if isinstance(user, str) and user.isdigit() else user
    if known not in USERS:
        raise ConfigError(f"there is no user {user!r:.60} in a sandbox: use root, guest or none")


def os_error(code: FileError, path: str) -> OSError:
    """Return the exception for a file that could not be read or written."""
    return _OS_ERRORS.get(code, OSError)(f"{path}: {code.replace('_', ' ')}")


async def _finish(
    box: BaseSandbox,
    command: Command,
    options: StartOptions,
    stdin: bytes | None,
    seconds: float | None,
) -> Finished:
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    timed_out = False
    async with await box.start(command, **options) as process:
        try:
            async with asyncio.timeout(seconds):
                feeding = asyncio.create_task(_feed(process, stdin))
                try:
                    async for piece in process.output():
                        held = kept[piece.stream]
                        held += piece.data[: MAX_OUTPUT - len(held)]
                    await process.wait()
                finally:
                    feeding.cancel()
        except TimeoutError:
            timed_out = True
    code = process.info.exit_code
    return Finished(
        exit_code=-1 if code is None else code,
        stdout=bytes(kept["stdout"]),
        stderr=bytes(kept["stderr"]),
        timed_out=timed_out,
    )


async def _feed(process: Process, stdin: bytes | None) -> None:
    if stdin is not None:
        await process.write(stdin, end=True)


async def _next(pieces: AsyncIterator[OutputPiece]) -> OutputPiece | None:
    return await anext(pieces, None)


def _workdir(image: str | None) -> str:
    """Return the WORKDIR of an image that is in the store; else that of any sandbox."""
    from atoll.images import find_image  # noqa: PLC0415 - only tasks with images need it

    held = None if image is None or image == HOST else find_image(image)
    if held is None:
        return WORKDIR
    try:
        return held.image.config.workdir or WORKDIR
    finally:
        held.close()


def _outermost(paths: Sequence[str]) -> list[str]:
    """Return folders that no other one contains, without those that each sandbox has."""
    wanted = {path.rstrip("/") for path in paths if path.strip("/")}
    return sorted(
        path
        for path in wanted
        if not any(path == one or path.startswith(f"{one}/") for one in (*_OWN, *(wanted - {path})))
    )

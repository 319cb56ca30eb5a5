"""InterpreterLauncher: the common part of backends whose guest is a CPython of this machine."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from atoll.backends._image import HeldRoot, no_cells, target_of
from atoll.errors import ConfigError
from atoll.launch import interpreter, library
from atoll.launch.handshake import handshake
from atoll.launch.launcher import Launcher
from atoll.packages.held import HeldPackages
from atoll.packages.target import for_interpreter
from atoll.policy import Isolation
from atoll.sandbox import verbs

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.guest.shared.messages import Json, StateParams
    from atoll.launch.guest_handle import GuestHandle
    from atoll.launch.handshake import HandshakeOptions, RunningGuest
    from atoll.launch.interpreter import Interpreter
    from atoll.sandbox.verbs import Commit
    from atoll.types import CommittedImage

LEAST_OPEN_FILES = 24


class InterpreterLauncher(Launcher):
    """Finds an interpreter of this machine, and the packages by name that it is to have."""

    python: Interpreter

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self.packages = HeldPackages()
        self.image = HeldRoot()

    async def find_interpreter(self) -> None:
        """Find the interpreter and the packages that the configuration names."""
        config, given = self.config, self.config.policy.max_open_files
        if given < LEAST_OPEN_FILES:
            problem = f"max_open_files must be at least {LEAST_OPEN_FILES}, not {given}"
            raise ConfigError(f"{problem}: starting Python in backend {self.backend!r} takes 20")
        if config.image is not None:
            found = self.image.find_at_once(config)  # no thread: as below
            if found is None:
                found = await asyncio.to_thread(self.image.find, self.backend, config)
            assert found.image is not None
            self.python, self.image_digest = found, found.image.digest
            self.no_cells = None if found.cells else no_cells(self.backend, found.image)
        elif config.python is None:  # no thread: a hop there and back is felt in a warm start
            self.python = interpreter.resolve(None)
        else:
            self.python = await asyncio.to_thread(interpreter.resolve, config.python)
        if config.packages:
            wheels_of = for_interpreter if config.image is None else target_of
            make_target = functools.partial(wheels_of, self.python)
            if (environment := await self.packages.find(config, make_target)) is not None:
                self.python = replace(self.python, packages=environment.site)

    @property
    def version(self) -> tuple[int, ...]:
        """The interpreter's version."""
        return self.python.version

    async def greet(
        self, handle: GuestHandle, config: SandboxConfig, **options: Unpack[HandshakeOptions]
    ) -> RunningGuest:
        """Send a guest its first request; start the image's program beside it, if it is to run."""
        image = self.python.image
        if image is None or (image.workdir is None and not image.entrypoint):
            return await handshake(handle, config, **options)
        extra: Json = {} if image.workdir is None else {"workdir": image.workdir}
        guest = await handshake(handle, config, **options, extra=extra)
        guest.processes.folder = image.workdir
        if image.entrypoint:
            request = verbs.Start(argv=list(image.entrypoint), stdin=False)
            env = {**self.process_env(), **guest.network_env}
            try:
                await guest.processes.start(request, env, guest.lease.start_process)
            except BaseException:
                await guest.close()
                raise
        return guest

    def process_env(self) -> dict[str, str]:
        """Return the variables that the interpreter was started with."""
        return interpreter.environment(self.python) | dict(self.config.policy.env)

    def state_params(self) -> StateParams:
        """Return how large a state may be, and where the guest finds cloudpickle."""
        jailed = self.level >= Isolation.JAILED
        return {
            "max_bytes": self.config.max_state_bytes,
            "cloudpickle": library.folder_in_guest(jailed=jailed),
            "replace": self.python.image is not None and self.config.workspace is None,
        }

    async def commit(self, guest: RunningGuest, request: Commit) -> CommittedImage:
        """Commit the guest's session; ConfigError if its root is not an image."""
        held = self.image.held_again()
        if held is None:
            text = "commit() adds a layer to the session's image, and this session has none"
            raise ConfigError(f"{text}: open it with image=..., and writable_root=True to install")
        from atoll.backends._commit import commit  # noqa: PLC0415 - most sandboxes have no image

        try:
            fds = await guest.lease.folders()
        except BaseException:
            held.close()
            raise
        return await asyncio.to_thread(commit, held, guest, self.config, fds, request)

    def close(self) -> None:
        """Release the packages and the image."""
        if self.packages.hold is not None:
            self.packages.close()
        if self.image.held is not None:
            self.image.close()

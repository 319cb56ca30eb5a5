"""Client of one tier's zygote host: starts it on first use and again if it is lost."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from atoll.concurrency import boot
from atoll.errors import SandboxLostError, SandboxStartError
from atoll.jail.supervisor import client
from atoll.jail.supervisor.spec import GUEST_CODE, Bind, ForkSpec, ZygoteHostSpec
from atoll.launch import library
from atoll.launch.guest_handle import start_guest
from atoll.launch.handshake import await_ready
from atoll.launch.interpreter import (
    GUEST_FOLDER,
    environment,
    package_binds,
    python_binds,
    site_code,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.jail.supervisor.client import Lease
    from atoll.jail.supervisor.spec import Limits
    from atoll.launch.guest_handle import GuestHandle
    from atoll.launch.interpreter import Interpreter

HOST_LOST = "zygote host"
LOST = ("zygote", HOST_LOST)
"""Start steps that fail because the zygote or its host was killed."""
THREADS = "packages: they start threads when they are imported, and so cannot be preloaded"
OLDEST = (3, 11)
"""The zygote runs atoll.jail, which needs the host's Python version."""
FORK_SECONDS = 25.0
"""The time limit of a fork on a busy machine; a stopped zygote would take for ever."""
_BOOT = boot.code("atoll.jail.zygote.main")
_PACKAGE = os.path.dirname(GUEST_FOLDER)


class ZygoteClient:
    """Guests forked off one zygote."""

    def __init__(
        self,
        interpreter: Interpreter,
        lines: tuple[str, ...],
        patience: float,
        *,
        if_threads: tuple[str, ...] | None = None,
    ) -> None:
        """`if_threads`: what to import instead, if `lines` start threads, which no fork has."""
        self._interpreter, self._lines, self._patience = interpreter, lines, patience
        self._if_threads = if_threads
        self._lease: Lease | None = None
        self._name = ""
        self._starting = asyncio.Lock()
        self._retired: list[Lease] = []
        """Zygote hosts that do not answer: their guests live on, no new one is forked there."""
        self.missing: list[str] = []
        """Libraries that could not be imported, with the reason: a warning, not a failure."""
        self.warm_seconds: float | None = None
        self._earlier_starts = 0

    @property
    def restarts(self) -> int:
        """How often a zygote was started in the place of one that died, or did not answer."""
        starts = 0 if self._lease is None else self._lease.starts
        return max(0, self._earlier_starts + starts - 1)

    @property
    def warm(self) -> bool:
        """Whether a warm zygote is running."""
        return self._lease is not None and not self._lease.ended.done()

    async def start(self) -> None:
        """Start a zygote and wait until it is warm; SandboxStartError after the time limit."""
        async with self._starting:
            if not self.warm:
                await self._start()

    async def fork_guest(self, limits: Limits) -> GuestHandle:
        """Return a new guest in its jail, before its handshake.

        An error is `retryable`, as nothing has run, unless the zygote itself cannot be started.
        """
        try:
            await self.start()
        except SandboxStartError as exc:
            raise (_killed(exc) if exc.step in LOST else exc) from None
        zygote_host = self._lease
        handle = start_guest(ForkSpec(zygote_host=self._name, limits=limits))
        try:
            async with asyncio.timeout(FORK_SECONDS):
                return await await_ready(handle, limits.memory)
        except TimeoutError:
            self._retire(zygote_host)
            await handle.close()
            raise SandboxLostError(f"no guest within {FORK_SECONDS:g} s: try again") from None
        except SandboxStartError as exc:
            await handle.close()
            if exc.step == HOST_LOST:
                self._retire(zygote_host)
            if exc.step in LOST:
                raise _killed(exc) from exc
            exc.retryable = True
            raise
        except BaseException:
            await handle.close()
            raise

    async def close(self) -> None:
        """End the zygote and every guest that was forked off it."""
        leases = [*self._retired, *([self._lease] if self._lease is not None else [])]
        self._lease, self._retired = None, []
        await asyncio.gather(*(lease.close() for lease in leases))

    def retire(self) -> None:
        """End the zygote when the last guest that was forked off it has ended."""
        self._retire(self._lease)

    @property
    def over(self) -> bool:
        """Whether nothing of it is left."""
        return not self.warm and all(lease.ended.done() for lease in self._retired)

    def _retire(self, lease: Lease | None) -> None:
        """Start another zygote host when the next guest is asked for."""
        if lease is not None and lease is self._lease:
            self._retired = [old for old in self._retired if not old.ended.done()] + [lease]
            self._earlier_starts, self._lease = self._earlier_starts + lease.starts, None
            lease.retire()

    async def _start(self) -> None:
        self._name = secrets.token_hex(8)
        lease = client.request(self._spec(), [])
        try:
            async with asyncio.timeout(self._patience):
                report: dict[str, Any] = (await lease.started)["zygote"]
        except TimeoutError:
            await lease.close()
            reason = f"it was not warm within {self._patience:g} s: preload less, or wait longer"
            raise SandboxStartError("zygote", reason) from None
        except BaseException:
            await lease.close()
            raise
        if report["threads"] > 1 and self._if_threads is not None:
            await lease.close()
            self._lines, self._if_threads = self._if_threads, None
            await self._start()
            self.missing = [*self.missing, THREADS]
            return
        self._earlier_starts += 0 if self._lease is None else self._lease.starts
        self._lease, self.missing = lease, report["missing"]
        self.warm_seconds = report["seconds"]

    def _spec(self) -> ZygoteHostSpec:
        return zygote_host_spec(self._name, self._interpreter, library.binds(), self._lines)


def zygote_host_spec(
    name: str,
    python: Interpreter,
    more: Sequence[Bind],
    lines: Sequence[str] = (),
    role: tuple[str, ...] = (),
) -> ZygoteHostSpec:
    """Return the spec of a zygote that sees the interpreter, Atoll, and `more` paths.

    `role` replaces the guest runtime in its children; see atoll.jail.zygote.main.
    """
    binds = [Bind(source=_PACKAGE, target=f"{GUEST_CODE}/atoll")]
    binds += [*python_binds(python), *package_binds(python)]
    code = site_code(python, pth_files=False) + _BOOT
    return ZygoteHostSpec(
        name=name,
        argv=(
            python.path,
            "-I",
            "-B",
            "-X",
            "utf8",
            "-c",
            code,
            GUEST_CODE,
            json.dumps(lines),
            *role,
        ),
        env=environment(python),
        binds=(*binds, *more),
        root=python.root,
    )


def _killed(exc: SandboxStartError) -> SandboxLostError:
    return SandboxLostError(f"{exc.reason}: nothing has run, try again")

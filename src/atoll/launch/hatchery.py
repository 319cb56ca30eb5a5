"""One tier's nursery as the host sees it: started on first need, started again if it is lost."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxLostError, SandboxStartError
from atoll.jail.client import warden
from atoll.jail.spec import GUEST_CODE, Bind, HatchSpec, NurserySpec
from atoll.launch import library
from atoll.launch.greeting import await_ready
from atoll.launch.interpreter import GUEST_FOLDER, environment
from atoll.launch.line import open_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.jail.client import Lease
    from atoll.jail.spec import Limits
    from atoll.launch.interpreter import Interpreter
    from atoll.launch.line import Line

LOST = ("zygote", "nursery")
"""Steps of a start that fail because somebody killed what was to take them."""
OLDEST = (3, 11)
"""The zygote runs the jail's own code, which needs what the host needs."""
FORK_SECONDS = 25.0
"""What a warm zygote may take on a machine full of work; one that is stopped takes for ever."""
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from atoll.jail.zygote import main; "
    "sys.path.remove(sys.argv[1]); main(*sys.argv[2:])"
)
_PACKAGE = os.path.dirname(GUEST_FOLDER)


class Hatchery:
    """Guests forked off one zygote."""

    def __init__(self, interpreter: Interpreter, lines: tuple[str, ...], patience: float) -> None:
        self._interpreter, self._lines, self._patience = interpreter, lines, patience
        self._lease: Lease | None = None
        self._name = ""
        self._starting = asyncio.Lock()
        self._retired: list[Lease] = []
        """Nurseries that do not answer: none is forked there any more, but guests may live on."""
        self.missing: list[str] = []
        """Libraries that could not be imported, with the reason: a warning, not a failure."""
        self.warm_seconds: float | None = None

    @property
    def warm(self) -> bool:
        """Whether a guest could be had at once."""
        return self._lease is not None and not self._lease.ended.done()

    async def start(self) -> None:
        """Have a warm zygote; SandboxStartError if it does not become one in time."""
        async with self._starting:
            if not self.warm:
                await self._start()

    async def hatch(self, limits: Limits) -> Line:
        """A guest that has entered its jail and heard nothing yet."""
        await self.start()
        nursery = self._lease
        line = open_line(HatchSpec(nursery=self._name, limits=limits))
        try:
            async with asyncio.timeout(FORK_SECONDS):
                return await await_ready(line, limits.memory)
        except TimeoutError:
            self._retire(nursery)
            await line.close()
            raise SandboxLostError(f"no guest within {FORK_SECONDS:g} s: try again") from None
        except BaseException as exc:
            await line.close()
            if isinstance(exc, SandboxStartError) and exc.step in LOST:
                raise SandboxLostError(f"{exc.reason}: nothing has run, try again") from exc
            raise

    async def close(self) -> None:
        """End the zygote and every guest that was forked off it."""
        leases = [*self._retired, *([self._lease] if self._lease is not None else [])]
        self._lease, self._retired = None, []
        await asyncio.gather(*(lease.close() for lease in leases))

    def _retire(self, lease: Lease | None) -> None:
        """Start another nursery when the next guest is asked for."""
        if lease is not None and lease is self._lease:
            self._retired = [one for one in self._retired if not one.ended.done()] + [lease]
            self._lease = None
            lease.retire()

    async def _start(self) -> None:
        self._name = secrets.token_hex(8)
        lease = warden.request(self._spec(), [])
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
        self._lease, self.missing = lease, report["missing"]
        self.warm_seconds = report["seconds"]

    def _spec(self) -> NurserySpec:
        return nursery_spec(self._name, self._interpreter, library.binds(), self._lines)


def nursery_spec(
    name: str,
    python: Interpreter,
    more: Sequence[Bind],
    lines: Sequence[str] = (),
    role: tuple[str, ...] = (),
) -> NurserySpec:
    """What the warden is asked for: a zygote that sees the interpreter, Atoll, and `more`.

    `role` is for children that are no plain guests; see atoll.jail.zygote.
    """
    binds = [Bind(source=_PACKAGE, target=f"{GUEST_CODE}/atoll")]
    binds += [Bind(source=folder, target=folder) for folder in python.folders]
    binds += [Bind(source=os.path.realpath(link), target=link) for link in python.links]
    boot = (_BOOT, GUEST_CODE, json.dumps(lines), *role)
    return NurserySpec(
        name=name,
        argv=(python.path, "-I", "-B", "-X", "utf8", "-c", *boot),
        env=environment(python),
        binds=(*binds, *more),
    )

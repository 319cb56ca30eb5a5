"""Processes of a session beside its cells, as its tenant uses them: counted, found, streamed."""

from __future__ import annotations

import base64
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from atoll.errors import BusyError, ProcessError
from atoll.launch.processes import KEPT_BYTES
from atoll.sandbox import verbs
from atoll.sandbox.process import start_request
from atoll.service.http.problems import Problem, encode, not_found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.sandbox.process import StartOptions
    from atoll.service.access.admission import Holding
    from atoll.service.core.tenant_session import HostedSession
    from atoll.types import ProcessInfo, ProcessOutput

R = TypeVar("R")
SHELL = "command -v bash > /dev/null && exec bash -i; exec sh -i"
"""What a terminal runs whose client names no command."""
MAX_COMMAND_BYTES = 1 << 20
INPUT_SECONDS = 10.0
"""For how long input waits for a process that does not read it."""
STEP_SECONDS = 0.5
"""For how long a reader is in the session; then it looks whether the session is another one."""
_GONE = "the process is gone: the session was started afresh, or went on on another machine"


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a reader is in the output of a process; None: that stream is not wanted."""

    out: int | None = 0
    err: int | None = 0


class Processes:
    """The processes of one session."""

    def __init__(self, hosted: HostedSession) -> None:
        self._hosted = hosted
        self._held: dict[str, Holding | None] = {}
        """What each takes of the tenant's memory: its command, and the output that is kept."""

    async def known(self) -> list[ProcessInfo]:
        """Describe each process; none of a session that is saved to disk."""
        if not self._hosted.session.live:
            return []
        infos = await self._ask(verbs.ListProcesses())
        for ident in self._held.keys() - {info.id for info in infos}:
            if (held := self._held.pop(ident)) is not None:
                held.release()
        return infos

    async def get(self, ident: str) -> ProcessInfo:
        """Return a process by its id; 404."""
        for info in await self.known():
            if info.id == ident:
                return info
        raise not_found("process")

    async def running(self) -> list[ProcessInfo]:
        """Return those that have not ended."""
        return [info for info in await self.known() if info.running]

    async def start(self, command: str | list[str], options: StartOptions) -> ProcessInfo:
        """Start a process; 422 if it cannot be."""
        size = len(encode([command, options]))
        if size > MAX_COMMAND_BYTES:
            text = f"a command with its environment has at most {MAX_COMMAND_BYTES:,} bytes"
            raise Problem(413, "too_large", f"{text}, not {size:,}: put data into a file")
        self._hosted.touch()
        await self.known()
        held = self._hosted.admit(size + 2 * KEPT_BYTES, "a process with its output")
        try:
            info = await self._ask(start_request(command, options))
        except BaseException as exc:
            if held is not None:
                held.release()
            if isinstance(exc, BusyError):
                raise Problem(429, "rate_limited", str(exc), retry_after=1) from None
            raise
        self._held[info.id] = held
        return info

    async def write(self, ident: str, data: bytes, *, end: bool) -> int:
        """Write to its input, and close that at the `end`; return how many bytes it took."""
        self._hosted.touch()
        text = base64.b64encode(data).decode()
        wait = INPUT_SECONDS * 1000
        return await self._ask(verbs.WriteProcess(process=ident, data=text, end=end, wait_ms=wait))

    async def resize(self, ident: str, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        await self._ask(verbs.ResizeProcess(process=ident, size=[rows, columns]))

    async def signal(self, ident: str, number: int) -> None:
        """Send a signal to it and to its process group."""
        await self._ask(verbs.SignalProcess(process=ident, signal=number))

    async def read(self, ident: str, at: Offsets, seconds: float) -> ProcessOutput:
        """Return output from these offsets on, or that it has ended; wait so long for it."""
        return await self._ask(
            verbs.ReadProcess(process=ident, stdout=at.out, stderr=at.err, wait_ms=seconds * 1000)
        )

    async def follow(
        self, ident: str, at: Offsets, pause: float
    ) -> AsyncIterator[ProcessOutput | None]:
        """Yield what it prints until it has ended; 410 if it is gone.

        Yield None after each pause, and while the session is frozen.
        """
        box, quiet = self._hosted.session.box, time.monotonic()
        while True:
            if self._hosted.session.box is not box:
                raise Problem(410, "process", _GONE)
            try:
                output = await self.read(ident, at, min(pause, STEP_SECONDS))
            except ProcessError:
                raise Problem(410, "process", _GONE) from None
            if output.stdout or output.stderr or not output.info.running:
                at, quiet = Offsets(output.stdout_end, output.stderr_end), time.monotonic()
                yield output
            if not (output.stdout or output.stderr or output.info.running):
                return
            if self._hosted.session.frozen or time.monotonic() - quiet >= pause:
                quiet = time.monotonic()
                yield None

    async def kill(self, ident: str) -> None:
        """Kill it, if it and its session are still there."""
        with contextlib.suppress(Exception):
            await self.signal(ident, 9)

    async def _ask(self, request: verbs.ProcessRequest[R]) -> R:
        return await self._hosted.session.carry_out(request)

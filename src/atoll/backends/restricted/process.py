"""The lease of a worker: interrupts, kills and reaps a child process of the host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

from atoll.jail.measure import meter
from atoll.jail.measure.usage import ProcessUsage
from atoll.jail.supervisor.client import REPORT_SECONDS
from atoll.types import EndReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class PlainProcess:
    """Has the interface of a jail's lease, for a plain child process."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._process, self._lifeline = process, lifeline
        self._pidfd = os.pidfd_open(process.pid)
        self.started: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[EndReport] = self._loop.create_future()
        self.started.set_result(None)
        self.usage = ProcessUsage(process.pid)
        self._loop.add_reader(self._pidfd, self._on_end)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def interrupt(self) -> None:
        """Send SIGINT to the guest."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the worker; `ended` is set later."""
        self._signal(signal.SIGKILL)

    def give(self, *_fds: int) -> None:
        """Do nothing: the worker inherited all its descriptors."""

    async def cpu_seconds(self) -> float:
        """Return the CPU time used so far."""
        return meter.cpu_seconds([self._process.pid])

    async def end_report(self) -> EndReport:
        """Return how a worker that has closed its channel ended; kill one that lives on."""
        await asyncio.wait({self.ended}, timeout=REPORT_SECONDS)
        self.kill()
        return await asyncio.shield(self.ended)

    async def close(self) -> None:
        """Kill the worker and wait until it has ended."""
        self.kill()
        await asyncio.shield(self.ended)

    def _signal(self, number: signal.Signals) -> None:
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        _, status, usage = os.wait4(self._process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        for fd in (self._pidfd, self._lifeline):
            os.close(fd)
        report = EndReport(
            exit=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            peak_memory=usage.ru_maxrss * 1024,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
        )
        if not self.ended.done():
            self.ended.set_result(report)


def start(
    argv: Sequence[str], fds: tuple[int, int, int], passed: Sequence[int], env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a child in its own session, with only the passed descriptors and environment."""
    stdin, stdout, stderr = fds
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=passed,
        env=dict(env),
        cwd="/",
        start_new_session=True,
    )

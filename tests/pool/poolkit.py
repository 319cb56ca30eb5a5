"""What the tests of the pool share: sandboxes, and a look at the processes behind them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atoll
from atoll.config import SandboxConfig
from atoll.hosting.pool import Pool, PooledSandbox
from atoll.jail.measure import cgroup, meter
from atoll.jail.supervisor.client import supervisor
from atoll.policy import ExecutionPolicy

MIB = 1 << 20
STRANGERS: set[int] = set()
"""The supervisor's children from before a test: whatever they are, they are none of its pool's."""
COUNTED = cgroup.find() is not None
"""Whether this host has control groups for us."""


class Family:
    """Opens sandboxes of one pool, and ends them all."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self._opened = pool, []

    async def open(self, context: Any = None, **options: Any) -> PooledSandbox:
        options.setdefault("preload", "bare")
        options.setdefault("timeout_ms", 20_000)
        limits = {name: options.pop(name) for name in LIMITS if name in options}
        if limits:
            options["policy"] = ExecutionPolicy(**limits)
        box = self.keep(PooledSandbox(SandboxConfig(**options), self.pool))
        await box.initialize(context)
        return box

    def keep(self, box: PooledSandbox) -> PooledSandbox:
        self._opened.append(box)
        return box

    async def fork(self, box: PooledSandbox) -> PooledSandbox:
        return self.keep(await box.fork())

    async def close(self) -> None:
        for box in self._opened:
            with contextlib.suppress(atoll.AtollError):
                await box.destroy()


LIMITS = frozenset(ExecutionPolicy.__slots__)


async def said(box: PooledSandbox, code: str, **options: Any) -> str:
    """What a cell that must not fail printed."""
    result = await box.execute(code, **options)
    assert result.success, result
    return result.stdout.strip()


def meet_strangers() -> None:
    """Learn what the supervisor looks after already: what other backends keep waiting."""
    STRANGERS.clear()
    if supervisor.pid is not None:
        STRANGERS.update(meter.children(supervisor.pid))


def processes() -> list[int]:
    """All that the supervisor has started, but for strangers and what is theirs."""
    assert supervisor.pid is not None
    return meter.processes(sorted({*meter.children(supervisor.pid)} - STRANGERS))


def zygote_hosts() -> list[int]:
    """Processes that the supervisor has started, but for the backends native and wasm.

    One that makes the mounts of a clone may still be ending; it has no pids of its own.
    """
    assert supervisor.pid is not None
    found = [pid for pid in meter.children(supervisor.pid) if pid not in STRANGERS]
    return [pid for pid in found if _has_own_pids(pid) and not _is_anothers(pid)]


def _has_own_pids(pid: int) -> bool:
    """Whether it has one pid more than the supervisor: that in a namespace below."""
    lines = [
        _status(one).partition("NSpid:")[2].partition("\n")[0] for one in (pid, supervisor.pid)
    ]
    return len(lines[0].split()) > len(lines[1].split())


def _status(pid: int | None) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text()
    return ""


def _is_anothers(pid: int) -> bool:
    marks = (b"guest.__main__", b"atoll.backends.wasm.worker")
    return any(mark in _command(child) for child in meter.children(pid) for mark in marks)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def zygotes() -> list[int]:
    """The zygote hosts' children that were executed: shells are forks."""
    found = [pid for zygote_host in zygote_hosts() for pid in meter.children(zygote_host)]
    return [
        pid for pid in found if b"atoll.jail.zygote.main" in command(pid) and is_root_of_pids(pid)
    ]


def is_root_of_pids(pid: int) -> bool:
    """Whether it lives in its parent's pid namespace: shells and guests have their own."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{parent(pid)}/ns/pid")
    return False


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def members(of: int) -> set[int]:
    """A process and all that descend from it."""
    return set(meter.processes([of]))


def jail_of(box: PooledSandbox) -> set[int]:
    """The host's numbers of the processes in a sandbox's jail, siblings' included."""
    assert box._guest is not None
    return {pid for pid in members(supervisor.pid) if _pid_namespace(pid) == _NAMESPACES[id(box)]}


_NAMESPACES: dict[int, str] = {}


async def know(box: PooledSandbox) -> None:
    """Learn which pid namespace a sandbox has, for `jail_of`."""
    _NAMESPACES[id(box)] = await said(box, "import os; print(os.readlink('/proc/self/ns/pid'))")


def _pid_namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


async def until(true: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for something that happens off our path."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)

"""What a fault is tried on: sessions that have nothing to do with it, one that has, and a census."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import roles

import atoll
from atoll.config import SandboxConfig
from atoll.hosting.pool import Pool, PoolSettings

ANSWER_SECONDS = 60
"""In which every call ends, whatever happened; a hang on a busy machine is still told apart."""
SETTLE_SECONDS = 60
CONFIG = SandboxConfig(preload="bare", timeout_ms=20_000)
Answer = atoll.SandboxResult | atoll.AtollError | bytes | atoll.BaseSandbox | None


class World:
    """A pool without parked guests and two bystanders: a forked session and a started one."""

    def __init__(self) -> None:
        self.pool = Pool(PoolSettings(default_tier="bare", parked=0, most_parked=0))
        self.bystanders: dict[str, atoll.BaseSandbox] = {}
        self.supervisors: set[int] = set()
        self.troubles: list[str] = []
        """What went wrong in a callback of the event loop, where no caller sees it."""
        self._before: Counter[str] = Counter()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.troubles.append(repr(context)))
        await self.pool.warm("bare")
        self.bystanders["forked"] = await self.open()
        self.bystanders["started"] = await self.open_started()
        await self._remember()
        for operation in OPERATIONS.values():  # what stays for good comes before the count
            box = await self.open()
            await self.close(box, await operation(self, box))
        self._before = await self._settled()

    async def stop(self) -> None:
        for box in self.bystanders.values():
            await box.destroy()
        await self.pool.close()

    async def open(self) -> atoll.BaseSandbox:
        return await self.pool.open(CONFIG)

    async def open_started(self) -> atoll.BaseSandbox:
        return await atoll.aio.create_sandbox(backend="native", timeout_ms=20_000)

    async def close(self, *boxes: Answer) -> None:
        """End those that are sandboxes; an end that fails still ends."""
        for box in boxes:
            if isinstance(box, atoll.BaseSandbox):
                await answer(box.destroy())

    async def check(self, spared: set[str], what: str) -> None:
        """Assert that the spared lost nothing, that a loss is told, and that nothing is left."""
        lost = {name for name, box in self.bystanders.items() if not await _remembers(box)}
        assert not lost & spared, (
            f"sessions that had nothing to do with it are lost: {lost}: {what}"
        )
        await self.close(await self.open())  # the next caller is served
        if len(roles.zygotes()) > 1:  # one is given up, and ends with the last of its guests
            await self.bystanders["forked"].destroy()
            self.bystanders["forked"] = await self.open()
        await self._remember()
        left = await self._settled(self._before)
        before, self._before = self._before, self._before | left  # for the next fault
        assert not left - before, f"left behind by {what}: {left - before}"
        assert not self.troubles, what

    async def _remember(self) -> None:
        for box in self.bystanders.values():
            assert (await box.execute("kept = 41")).success
        self.supervisors.add(roles.supervisor())

    async def _settled(self, before: Counter[str] | None = None) -> Counter[str]:
        """Count until nothing is more than before, or for a while; the kernel takes its time."""
        end, now = time.monotonic() + SETTLE_SECONDS, Counter[str]()
        while time.monotonic() < end:
            now, last = self._count(), now
            if now == last if before is None else not now - before:
                break
            await asyncio.sleep(0.05)
        return now

    def _count(self) -> Counter[str]:
        """Count the seven kinds, of this process, its supervisor, zygote host and zygote."""
        gc.collect()
        try:
            ours = {"supervisor": roles.supervisor(), "zygote host": roles.zygote_host()}
            ours |= {"zygote": roles.zygote(), "host": os.getpid()}
            return Counter(self._census(ours))
        except (OSError, AssertionError):
            return Counter({"a process is missing": 1})  # it is on its way

    def _census(self, ours: dict[str, int]) -> dict[str, int]:
        found = {"processes": len(roles.descendants(ours["supervisor"]))}
        for name, pid in ours.items():
            links = [_target(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            found[f"descriptors of the {name}"] = len([one for one in links if not _kept(one)])
            found[f"shared memory of the {name}"] = sum("memfd:" in link for link in links)
            found[f"mounts of the {name}"] = Path(f"/proc/{pid}/mountinfo").read_text().count("\n")
            found[f"threads of the {name}"] = len(os.listdir(f"/proc/{pid}/task"))
        found["threads of the host"] = sum(
            not thread.name.startswith("asyncio_") for thread in threading.enumerate()
        )
        groups = roles.control_groups(self.supervisors)
        used = sum(map(roles.is_populated, groups))
        found["control groups"] = max(len(groups), 2 * used)  # as many are kept as are in use
        folders = {Path(tempfile.gettempdir()), Path("/dev/shm")}
        found["temporary files"] = sum(len([*folder.glob("*-atoll*")]) for folder in folders)
        return found


async def answer(work: Awaitable[Any], seconds: float = ANSWER_SECONDS) -> Any:
    """Return what a call returned, or the AtollError that it raised; anything else fails."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except atoll.AtollError as error:
        return error
    except TimeoutError:
        raise AssertionError(f"no answer within {seconds} s") from None


async def find_jail(box: atoll.BaseSandbox) -> tuple[str, int]:
    """Return the pid namespace of a session's guest, and its number there."""
    result = await box.execute("import os; print(os.readlink('/proc/self/ns/pid'), os.getpid())")
    namespace, number = result.stdout.split()
    return namespace, int(number)


async def _remembers(box: atoll.BaseSandbox) -> bool:
    """Whether a session still has its variable; one that has lost it must say so."""
    result = await answer(box.execute("print(globals().get('kept'))"))
    if isinstance(result, atoll.SandboxResult) and result.stdout == "41\n":
        return True
    assert isinstance(result, atoll.AtollError) or result.state_lost, f"a silent loss: {result}"
    return False


async def _open(world: World, _box: atoll.BaseSandbox) -> Answer:
    return await answer(world.open())


async def _start(world: World, _box: atoll.BaseSandbox) -> Answer:
    return await answer(world.open_started())


async def _execute(_world: World, box: atoll.BaseSandbox) -> Answer:
    return await answer(box.execute("print(6 * 7)"))


async def _overrun(_world: World, box: atoll.BaseSandbox) -> Answer:
    """Run into the deadline: the supervisor has to interrupt, and here to kill."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    return await answer(box.execute(code, timeout_ms=50))


async def _fork(_world: World, box: atoll.BaseSandbox) -> Answer:
    return await answer(box.fork())


async def _save(_world: World, box: atoll.BaseSandbox) -> Answer:
    return await answer(box.save())


async def _destroy(_world: World, box: atoll.BaseSandbox) -> Answer:
    return await answer(box.destroy())


OPERATIONS: dict[str, Callable[[World, atoll.BaseSandbox], Awaitable[Answer]]] = {
    "open": _open, "start": _start, "execute": _execute, "overrun": _overrun, "fork": _fork,
    "save": _save, "destroy": _destroy,
}  # fmt: skip
"""What a caller does: `open` forks a guest off the zygote, `start` starts one without."""


def _kept(link: str) -> bool:
    """Whether a descriptor is the entrance of a control group, which is counted by itself."""
    return link.endswith(("/cgroup.procs", "/tasks"))  # of one that is removed: "... (deleted)"


def _target(link: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(link)
    return ""

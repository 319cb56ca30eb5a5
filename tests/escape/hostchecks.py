"""What must hold on the host while an attack runs and after it: one class for each `host_check`.

Each is made before the sandbox is opened, is told when the attack has run, and judges after the
sandbox has been destroyed. All of them look at processes and files of this test process alone (its
temporary folder is its own), so other programs on the machine cannot make them fail.
"""

from __future__ import annotations

import contextlib
import glob
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.config import daemon_socket
from atoll.daemon import lifecycle
from atoll.daemon.paths import DaemonPaths
from atoll.jail.supervisor.client import supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from canaries import Canaries
    from corpus import Attack

    from atoll import SyncSandbox

MIB = 1 << 20
PROCESSES_OF_A_GUEST = 2
"""Its own, and pid 1 of its jail."""
END_SECONDS = 30.0
"""A moment; on a machine full of tests it may be as long as this."""
SLACK_BYTES = 64 * MIB
PAUSE_SECONDS = 0.005
SLOWER_AT_MOST = 50
"""How much more a neighbour may be slowed down than a program that has nothing to do with Atoll."""
FEWEST_ROUNDS = 2 * SLOWER_AT_MOST
"""How many answers of a neighbour have to be expected to judge by those that came."""
RSS_GROWTH = 96 * MIB
"""Twice the caps of stdout and stderr, as bytes and as text."""


class Check:
    """A check with nothing to it: the base of the others."""

    def __init__(self, attack: Attack, canaries: Canaries, neighbour: SyncSandbox) -> None:
        self.attack, self.canaries, self.neighbour = attack, canaries, neighbour

    def attack_ran(self) -> None:
        """The attack has had its time; the sandbox is still open."""

    def failure(self) -> str | None:
        """After destroy(): what is wrong, or None."""
        return None


class OutsideDirUnchanged(Check):
    """Nothing outside was written, changed or removed."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._before = self.canaries.outside_listing()

    def failure(self) -> str | None:
        after = self.canaries.outside_listing()
        return None if after == self._before else f"the outside folder changed: {sorted(after)}"


class NoLeftoverProcs(Check):
    """No process of the sandbox lives on."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._top = trusted_pid(self.neighbour)
        self._before, self._parked = self._settled()

    def failure(self) -> str | None:
        left = _wait_until_empty(self._left, END_SECONDS)
        return f"processes live on: {sorted(left)}" if left else None

    def _settled(self) -> tuple[set[int], int]:
        """What there is when the pool has replaced the guests that the attack before this used."""
        end = time.monotonic() + END_SECONDS
        seen = set(descendants(self._top)), _parked(self.neighbour)
        while _in_daemon(self.neighbour) and time.monotonic() < end:
            time.sleep(0.1)
            now = set(descendants(self._top)), _parked(self.neighbour)
            if now == seen:
                break
            seen = now
        return seen

    def _left(self) -> set[int]:
        """New processes, unless there are no more of them than guests that now wait in the pool."""
        now = set(descendants(self._top))
        more_parked = PROCESSES_OF_A_GUEST * (_parked(self.neighbour) - self._parked)
        return now - self._before if len(now) - len(self._before) > max(0, more_parked) else set()


class DaemonAlive(Check):
    """The trusted process is the one it was, and serves others."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._pid = trusted_pid(self.neighbour)

    def failure(self) -> str | None:
        now = trusted_pid(self.neighbour)
        if now != self._pid or (self._pid and not Path(f"/proc/{self._pid}").exists()):
            return f"the trusted process was {self._pid} and is {now}"
        answer = self.neighbour.execute("print('neighbour', 6 * 7)")
        return None if "neighbour 42" in answer.stdout else f"the neighbour says {answer}"


class NoLeftoverShm(Check):
    """No file that the attack names is in the host's shared memory."""

    def failure(self) -> str | None:
        names = [name for name in os.listdir("/dev/shm") if name in self.attack.code]
        return f"left in shared memory: {names}" if names else None


class DiskFreed(Check):
    """What the guest wrote takes no room any more, on disk or in memory."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._before = self._taken()

    def failure(self) -> str | None:
        limit = self._before + SLACK_BYTES
        end = time.monotonic() + END_SECONDS
        while (taken := self._taken()) > limit and time.monotonic() < end:
            time.sleep(0.1)
        return f"{(taken - self._before) // MIB} MiB are still taken" if taken > limit else None

    def _taken(self) -> int:
        return room_taken(descendants(trusted_pid(self.neighbour)))


class WorkspaceRemoved(Check):
    """No private working folder is left on the host."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._before = _private_folders()

    def failure(self) -> str | None:
        left = _wait_until_empty(lambda: _private_folders() - self._before, END_SECONDS)
        return f"working folders are left: {sorted(left)}" if left else None


class Sampler(Check):
    """Looks again and again, in a thread, while the attack runs."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def attack_ran(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(PAUSE_SECONDS)

    def look(self) -> None:
        """One sample."""
        raise NotImplementedError


class DaemonRssBounded(Sampler):
    """Whatever reads all that the guest sends, this process or the daemon, does not grow with it."""

    def __init__(self, *args: object) -> None:
        neighbour: SyncSandbox = args[2]  # type: ignore[assignment]
        self._readers: list[str | int | None] = [
            "self",
            *([trusted_pid(neighbour)] if _in_daemon(neighbour) else []),
        ]
        self._before = self._peak = self._rss()
        super().__init__(*args)

    def look(self) -> None:
        self._peak = max(self._peak, self._rss())

    def _rss(self) -> int:
        return sum(_rss(reader) for reader in self._readers)

    def failure(self) -> str | None:
        grown = self._peak - self._before
        return f"the host grew by {grown // MIB} MiB" if grown > RSS_GROWTH else None


class NeighbourAnswers(Sampler):
    """Another sandbox of the same host goes on answering.

    Counted are its answers while the attack runs, beside the rounds of a yardstick: two processes
    that have nothing to do with Atoll. A busy machine slows both down, a stuck host only the one.
    """

    def __init__(self, *args: object) -> None:
        self._neighbour: SyncSandbox = args[2]  # type: ignore[assignment]
        self._yardstick = Yardstick()
        self._answers = 0
        for _ in range(10):
            self.look()
            time.sleep(PAUSE_SECONDS)
        self._usual = self._answers / max(1, self._yardstick.rounds())
        self._answers = 0
        super().__init__(*args)

    def attack_ran(self) -> None:
        self._expected = self._usual * self._yardstick.rounds()
        self._seen = self._answers  # before a neighbour that waited is answered after all
        self._yardstick.close()
        super().attack_ran()

    def look(self) -> None:
        self._neighbour.execute("1")
        self._answers += 1

    def failure(self) -> str | None:
        if self._expected < FEWEST_ROUNDS or self._seen * SLOWER_AT_MOST >= self._expected:
            return None
        return f"a neighbour answered {self._seen} times instead of about {self._expected:.0f}"


class Yardstick:
    """A program that passes a byte to another and back, again and again, and counts the rounds."""

    PROGRAM = """
import select, subprocess, sys
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
rounds = 0
while True:
    other.stdin.write(b"x"); other.stdout.read(1)
    rounds += 1
    if select.select([0], [], [], float(sys.argv[1]))[0]:
        if not sys.stdin.readline(): break
        print(rounds, flush=True)
        rounds = 0
"""

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-c", self.PROGRAM, str(PAUSE_SECONDS)]
        pipe = subprocess.PIPE
        self._program = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.rounds()  # it has started

    def rounds(self) -> int:
        """How many rounds there were since the last call."""
        stdin, stdout = self._program.stdin, self._program.stdout
        assert stdin is not None
        assert stdout is not None
        print(file=stdin, flush=True)
        return int(stdout.readline())

    def close(self) -> None:
        """End it."""
        self._program.communicate()


CHECKS: dict[str, type[Check]] = {
    "outside_dir_unchanged": OutsideDirUnchanged,
    "no_leftover_procs": NoLeftoverProcs,
    "zygote_alive": DaemonAlive,
    "daemon_alive": DaemonAlive,
    "no_leftover_shm": NoLeftoverShm,
    "disk_freed": DiskFreed,
    "workspace_removed": WorkspaceRemoved,
    "daemon_rss_bounded": DaemonRssBounded,
    "neighbour_latency_ok": NeighbourAnswers,
}


def _is_wasm_zygote(pid: int) -> bool:
    try:
        return b"atoll.backends.wasm.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def descendants(top: int | None) -> list[int]:
    """Every process below `top`, told by the parents that /proc names."""
    parents: dict[int, list[int]] = {}
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = Path(stat).read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.split("/")[2]))
    found, queue = [], list(parents.get(top or 0, ()))
    while queue:
        pid = queue.pop()
        if any(_is_wasm_zygote(child) for child in parents.get(pid, ())):
            continue  # a zygote host of the backend wasm: guests wait there, from other tests too
        found.append(pid)
        queue += parents.get(pid, ())
    return found


def _wait_until_empty(
    look: Callable[[], set[int] | set[str]], seconds: float
) -> set[int] | set[str]:
    end = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def room_taken(pids: list[int]) -> int:
    """Bytes in our temporary folder, and in file systems in memory that these processes see."""
    files = (path for path in Path(tempfile.gettempdir()).rglob("*") if not path.is_symlink())
    return sum(map(_size, files)) + sum(_memory_file_systems(pids).values())


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0  # it has just been removed


def _memory_file_systems(pids: list[int]) -> dict[str, int]:
    """The bytes used of each tmpfs by its device number, but for those that the host sees too."""
    found: dict[str, int] = {}
    ours = {line.split()[2] for line in _mounts("self")}
    for pid in pids:
        for line in _mounts(pid):
            _, _, device, _, place, *_ = line.split()
            if device not in ours and device not in found:
                with contextlib.suppress(OSError):
                    facts = os.statvfs(f"/proc/{pid}/root{place}")
                    found[device] = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return found


def _mounts(pid: int | str) -> list[str]:
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    except OSError:
        return []  # it has just ended
    return [line for line in lines if " - tmpfs " in line]


def _private_folders() -> set[str]:
    return set(glob.glob(os.path.join(tempfile.gettempdir(), "*-atoll")))


def trusted_pid(neighbour: SyncSandbox) -> int | None:
    """The process that forks jails: the daemon (its supervisor is a child), or our own supervisor."""
    if not _in_daemon(neighbour):
        return supervisor.pid
    return lifecycle.status(DaemonPaths(daemon_socket()))["pid"]


def _parked(neighbour: SyncSandbox) -> int:
    """Guests that wait in the daemon's pool: nobody has spoken to them."""
    if not _in_daemon(neighbour):
        return 0
    facts = lifecycle.status(DaemonPaths(daemon_socket()))
    return sum(tier["parked"] for tier in facts["pool"].values()) if facts else 0


def _in_daemon(neighbour: SyncSandbox) -> bool:
    return getattr(neighbour, "backend", "") == "daemon"


def _rss(process: str | int | None) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

"""The attacks from inside a process beside the cells, and on the way into it: none gets through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import canaries
import corpus
import harness
import pytest
import variants

import atoll
from atoll import Capability, ProcessError
from atoll.backends import registry
from atoll.cli.selfcheck import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpus import Attack

BACKENDS = [name for name in ("native", "daemon") if name in registry.names()]
CASES = [*BACKENDS, *(case for case in variants.IN_IMAGE if variants.backend_of(case) in BACKENDS)]
SAMPLED = {"native": (1, 8), "daemon": (8, 32), "native-image": (32, 64), "daemon-image": (64, 64)}
"""Of so many attacks of a category one is run there: of the harmless ones, and of the others."""
PYTHON = ("python3", "-c")
OF_CELLS = frozenset({"nat-sig-atexit"})
"""Attacks that do no harm in a process: it runs its exit functions, as any Python does."""
HOW_IT_IS = """
import os
facts = {line.split(':')[0]: line.split(':')[1].strip() for line in open('/proc/self/status')}
names = ('Uid', 'Gid', 'Groups', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')
spaces = [os.readlink('/proc/self/ns/' + name) for name in ('user', 'mnt', 'pid', 'net', 'ipc', 'uts')]
print([facts[name] for name in names], spaces, os.stat('/').st_ino, open('/proc/self/mountinfo').read(),
      open('/proc/self/cgroup').read(), sorted(os.listdir('/dev')))
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attack" not in metafunc.fixturenames:
        return
    whole = metafunc.config.getoption("matrix") == "all"
    cases = [
        (name, attack)
        for name in CASES
        for group, one_of in zip(_groups(variants.backend_of(name)), SAMPLED[name], strict=True)
        for attack in corpus.sample(group, 1 if whole else one_of)
    ]
    metafunc.parametrize(("backend", "attack"), cases, ids=[f"{n}-{a.id}" for n, a in cases])


def _groups(backend: str) -> tuple[list[Attack], list[Attack]]:
    """Return the attacks that ask for something and print what they got, and all others."""
    both: tuple[list[Attack], list[Attack]] = [], []
    for attack in corpus.for_backend(backend):
        if attack.id in OF_CELLS or any(step.kind == "restore" for step in attack.then):
            continue  # a process leaves no variables in a saved state
        both[not corpus.is_harmless(attack, backend)].append(attack)
    return both


class Anything(tuple[str, ...]):
    """How the end of a process is judged: it may end in any way."""

    __slots__ = ()

    def __contains__(self, _way: object) -> bool:
        return True


class InProcess(harness.Run):
    """An attack from a process beside the cells; what follows it in the session is a cell."""

    @property
    def limit_s(self) -> float:
        """What the process may take; one that runs into its limit as a cell does so here."""
        ways = corpus.endings(self.backend).get(self.attack.id, ())
        return harness.ENDLESS_S if "timeout" in ways else harness.TIMEOUT_S

    @property
    def endings(self) -> tuple[str, ...]:
        return Anything()

    def execute(self, box: atoll.SyncSandbox, code: str, what: str) -> atoll.SandboxResult | None:
        if what != "attack":
            return super().execute(box, code, what)
        code = self.canaries.fill(code)
        try:
            printed = output_of(box.start([*PYTHON, code], stdin=False), self.limit_s)
        except atoll.SandboxError as exc:  # the jail was ended with all in it, in words
            printed = str(exc)
        own = {line.strip() for line in code.splitlines()}
        seen = "\n".join(line for line in printed.splitlines() if line.strip() not in own)
        if canaries.MARK in seen:
            at = seen.index(canaries.MARK)
            self.fail(f"{what}: {seen[max(0, at - 40) : at + 120]!r}")
        self.outputs.append(seen)
        return None


@pytest.fixture
def box(backend: str) -> Iterator[atoll.SyncSandbox]:
    with variants.opened_in_image(backend):
        box = atoll.create_sandbox(backend=variants.backend_of(backend))
    with box:
        yield box


def output_of(process: atoll.SyncProcess, seconds: float = 60) -> str:
    """Return what a process prints until it has ended; kill it after so long."""
    printed, end = bytearray(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        found = process.poll(timeout_ms=left * 1000)
        printed += found.stdout + found.stderr
        del printed[: -harness.MOST_COLLECTED]
        if not (found.info.running or found.stdout or found.stderr):
            break
    process.kill()
    return printed.decode("utf-8", "replace")


def test_attack_from_inside_a_process_does_not_get_through(backend: str, attack: Attack) -> None:
    verdict = harness.run(attack, backend, InProcess)
    assert verdict.held, f"{attack.passes}\n{verdict.failures}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_attack_of_the_self_check_gets_through_from_inside_a_process(backend: str) -> None:
    """Those of `atoll doctor --attack`, each in a sandbox of its own."""
    asyncio.run(_self_check(backend))


async def _self_check(backend: str) -> None:
    got: dict[str, str] = {}
    async with check.Canaries() as found:
        for attack in check.load():
            for code in filter(None, (attack.code, attack.then)):
                seen = await asyncio.to_thread(_attacked, backend, attack, found, code)
                left = [*found.take_files(), *_left(found.label)]
                if check.MARK in seen or left:
                    got[attack.name] = f"{seen[-200:]} {left}"
    assert got == {}


def _attacked(backend: str, attack: check.Attack, found: check.Canaries, code: str) -> str:
    with atoll.create_sandbox(backend=backend, policy=check.SMALL) as box:
        printed = ""
        with contextlib.suppress(atoll.SandboxError):  # the jail was ended with all in it
            process = box.start([*PYTHON, f"{found.prelude()}\n{code}"], stdin=False)
            printed = output_of(process, attack.timeout_ms / 1000)
        assert box.execute(harness.ALIVE).stdout == "alive 42\n", attack.name
        return printed


@pytest.mark.parametrize("backend", CASES)
def test_a_process_is_where_the_guest_is_with_no_more_rights(box: atoll.SyncSandbox) -> None:
    assert output_of(box.start(["python3", "-c", HOW_IT_IS])) == box.execute(HOW_IT_IS).stdout


@pytest.mark.parametrize("backend", CASES)
def test_it_has_no_descriptor_of_the_host(box: atoll.SyncSandbox) -> None:
    listed = "import os; print(sorted(os.listdir('/proc/self/fd'))[:-1], os.readlink('/proc/self/fd/1')[:5])"
    assert output_of(box.start(["python3", "-c", listed])) == "['0', '1', '2'] pipe:\n"


@pytest.mark.parametrize("backend", CASES)
def test_input_cannot_be_forged_for_a_terminal(box: atoll.SyncSandbox) -> None:
    code = (
        "import fcntl, termios, os\n"
        "for path in ('/dev/tty', os.ttyname(0)):\n"
        "    try: fcntl.ioctl(os.open(path, os.O_RDWR), termios.TIOCSTI, b'x'); print('typed')\n"
        "    except OSError as exc: print(exc.errno)\n"
        "print(os.listdir('/dev/pts'))"
    )
    process = box.start(["python3", "-c", code], pty=True)
    assert output_of(process) == "1\r\n1\r\n['0', 'ptmx']\r\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_that_a_process_started_outlives_the_session(backend: str) -> None:
    """Daemons of it, in other sessions and process groups, deaf to signals, with its output open."""
    label = f"outlives-{uuid.uuid4().hex}"
    code = (
        "import os, signal, sys, time\n"
        "for number in range(1, 32):\n"
        "    if number not in (9, 19): signal.signal(number, signal.SIG_IGN)\n"
        "for _ in range(8):\n"
        "    if not os.fork():\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        f"        os.execv(sys.executable, ['{label}', '-c', 'import time; time.sleep(1000)'])\n"
        "print('ready', flush=True); time.sleep(1000)"
    )
    with atoll.create_sandbox(backend=backend) as box:
        first, second = (box.start([*PYTHON, code], stdin=False, pty=pty) for pty in (False, True))
        assert first.read().strip() == second.read().strip() == b"ready"
        while len(_with_label(label)) < 18:  # and the two themselves
            time.sleep(0.01)
        first.signal("SIGTERM")
        first.kill()  # what left its process group ends with the session
    assert _left(label) == []


def _left(label: str) -> list[str]:
    """Return processes of the host with a label that do not end, in whatever time they get."""
    end = time.monotonic() + 60
    while (left := _with_label(label)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def _with_label(label: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if label.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
    return found


IN_TMP = "import os; sorted(os.listdir('/tmp'))"


@pytest.mark.parametrize("backend", BACKENDS)
def test_floods_of_output_stay_in_bounds_and_leave_the_session_usable(backend: str) -> None:
    with atoll.create_sandbox(backend=backend) as box:
        in_tmp = box.execute(IN_TMP).value  # a venv below /tmp is seen there
        flood = "import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)"
        floods = [box.start([*PYTHON, flood], stdin=False, pty=n % 2 == 0) for n in range(6)]
        before = _resident()
        for _ in range(20):
            assert box.execute("6 * 7").value == 42
            time.sleep(0.1)
        assert _resident() - before < 64 << 20
        found = floods[0].poll(timeout_ms=60_000)
        assert len(found.stdout) <= 1 << 20
        for process in floods:
            process.kill()
        assert output_of(box.start("echo calm")) == "calm\n"
        assert box.execute(IN_TMP).value == in_tmp


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_process_reaches_the_terminal_of_no_other(box: atoll.SyncSandbox) -> None:
    """Neither a neighbour's by its name, nor one as its own that it did not get."""
    victim = box.start(["cat"], pty=True)
    code = (
        "import fcntl, os, termios\n"
        "def attempt(what, do):\n"
        "    try: print(what, do())\n"
        "    except OSError as exc: print(what, 'refused')\n"
        "attempt('tty', lambda: os.open('/dev/tty', os.O_RDWR))\n"
        "for name in sorted(os.listdir('/dev/pts')):\n"
        "    if not name.isdecimal(): continue\n"
        "    fd = os.open('/dev/pts/' + name, os.O_RDWR | os.O_NOCTTY)\n"
        "    attempt('TIOCSTI', lambda: fcntl.ioctl(fd, termios.TIOCSTI, b'x'))\n"
        "    attempt('TIOCLINUX', lambda: fcntl.ioctl(fd, 0x541C, b'\\x03'))\n"
        "    attempt('TIOCCONS', lambda: fcntl.ioctl(fd, 0x541D))\n"
        "    attempt('TIOCSETD', lambda: fcntl.ioctl(fd, 0x5423, b'\\x03\\0\\0\\0'))\n"
        "    os.setsid() if os.getpid() != os.getsid(0) else None\n"
        "    attempt('TIOCSCTTY', lambda: fcntl.ioctl(fd, termios.TIOCSCTTY, 1))\n"
    )
    shown = output_of(box.start([*PYTHON, code], stdin=False)).splitlines()
    assert shown[0] == "tty refused"
    wanted = ("TIOCSTI", "TIOCLINUX", "TIOCCONS", "TIOCSETD", "TIOCSCTTY")
    assert [line for line in shown[1:] if line.startswith(wanted) and "refused" not in line] == []
    victim.write("still mine\n")
    assert b"still mine" in victim.read()
    victim.kill()


SNOOP = """
import os, time, signal
seen, end = set(), time.monotonic() + {seconds}
while time.monotonic() < end:
    for name in os.listdir('/proc'):
        if name.isdecimal() and int(name) > 2 and int(name) != os.getpid():
            for part in ('environ', 'mem', 'maps', 'fd/3', 'root/etc/shadow', 'cwd/etc/shadow'):
                try: seen.add((part, open(f'/proc/{{name}}/{{part}}', 'rb').read(64)))
                except OSError: pass
            {more}
sorted(part for part, data in seen if data)
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "more",
    ["pass", "os.kill(int(name), signal.SIGSTOP)", "os.kill(int(name), signal.SIGKILL)"],
    ids=["looks", "stops", "kills"],
)
def test_a_guest_that_races_the_start_learns_and_gains_nothing(
    box: atoll.SyncSandbox, more: str
) -> None:
    """It looks into each new process of its jail, or stops or kills it, as soon as it sees it."""
    attempt = (
        more if more == "pass" else f"\n            try: {more}\n            except OSError: pass"
    )
    results: list[atoll.SandboxResult] = []
    code = SNOOP.format(seconds=2, more=attempt)
    cell = threading.Thread(target=lambda: results.append(box.execute(code)))
    cell.start()
    secret, started, end = "SECRET=of-the-host", 0, time.monotonic() + 2
    while time.monotonic() < end:
        with contextlib.suppress(ProcessError):
            process = box.start(["true"], env={"SECRET": secret})
            started += 1
            with contextlib.suppress(TimeoutError):
                process.wait(timeout_ms=100)
            process.kill()
    cell.join()
    (result,) = results
    assert result.error is None, result
    assert not set(result.value) & {"fd/3", "root/etc/shadow", "cwd/etc/shadow"}, result.value
    assert started
    assert output_of(box.start("echo $HOME")) == "/home/guest\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_limit_of_processes_refuses_the_start_in_words(backend: str) -> None:
    with atoll.create_sandbox(backend=backend, policy={"max_processes": 8}) as box:
        box.execute(
            "import subprocess\nheld = []\ntry:\n"
            "    while True: held.append(subprocess.Popen(['sleep', '100']))\n"
            "except OSError: pass"
        )
        with pytest.raises(ProcessError, match="could not be started"):
            for _ in range(4):
                box.start("sleep 100")
        box.execute("for one in held: one.kill(); one.wait()")
        assert output_of(box.start("echo again")) == "again\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_of_processes_counts_as_the_guests(backend: str) -> None:
    with atoll.create_sandbox(backend=backend, policy={"memory_bytes": 128 << 20}) as box:
        hog = "x = []\nwhile True: x.append(bytes(8 << 20)); x[-1] and None"
        hogs = [box.start(["python3", "-c", hog]) for _ in range(3)]
        for process in hogs:
            with contextlib.suppress(atoll.SandboxError):  # the session may end with them
                assert process.wait(timeout_ms=60_000).exit_code != 0


@pytest.mark.parametrize("backend", ["native"])
def test_a_frozen_session_has_frozen_processes(backend: str) -> None:
    with atoll.create_sandbox(backend=backend) as box:
        process = box.start("while true; do date +%N; sleep 0.01; done")
        process.read()
        box.portal.run(box.inner.freeze())
        with pytest.raises(TimeoutError):
            while process.read(timeout_ms=500):
                pass
        box.portal.run(box.inner.thaw())
        assert process.read(timeout_ms=60_000)


def test_the_backends_can_start_processes() -> None:
    assert all(Capability.PROCESSES in registry.load(name).capabilities for name in BACKENDS)
    assert os.path.exists("/proc/self/ns/user")

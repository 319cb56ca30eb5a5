"""The attacks from inside a process beside the cells, and on the way into it: none gets through."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

import canaries
import corpus
import harness
import pytest
import variants

import atoll
from atoll import Capability, ProcessError
from atoll.backends import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpus import Attack

BACKENDS = [name for name in ("native", "daemon") if name in registry.names()]
CASES = [*BACKENDS, *(case for case in variants.IN_IMAGE if variants.backend_of(case) in BACKENDS)]
SAMPLED = {"native": 1, "daemon": 8, "native-image": 32, "daemon-image": 64}
"""Of so many attacks of a category one is run there."""
SECONDS = 60.0
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
        for attack in corpus.sample(
            _plain(variants.backend_of(name)), 1 if whole else SAMPLED[name]
        )
    ]
    metafunc.parametrize(("backend", "attack"), cases, ids=[f"{n}-{a.id}" for n, a in cases])


def _plain(backend: str) -> list[Attack]:
    """Return the attacks that ask for something and print what they got, in Python of any kind."""
    return [
        attack
        for attack in corpus.for_backend(backend)
        if corpus.is_harmless(attack, backend) and harness.fits_machine(attack)
    ]


@pytest.fixture
def box(backend: str) -> Iterator[atoll.SyncSandbox]:
    with variants.opened_in_image(backend):
        box = atoll.create_sandbox(backend=variants.backend_of(backend))
    with box:
        yield box


def output_of(process: atoll.SyncProcess) -> str:
    data = b"".join(piece.data for piece in process.output())
    return data.decode("utf-8", "replace")


def test_attack_from_inside_a_process_does_not_get_through(
    box: atoll.SyncSandbox, attack: Attack
) -> None:
    code = canaries.planted().fill(attack.code)
    process = box.start(["python3", "-c", code], stdin=False)
    end = process.wait(timeout_ms=SECONDS * 1000)
    own = {line.strip() for line in code.splitlines()}
    seen = [line for line in output_of(process).splitlines() if line.strip() not in own]
    assert canaries.MARK not in "\n".join(seen), f"{attack.passes}\n{seen}"
    assert end.exit_code is not None
    assert box.execute(harness.ALIVE).stdout == "alive 42\n"


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

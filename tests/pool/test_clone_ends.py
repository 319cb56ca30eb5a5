"""How clones end: in any order, with all that they started, and without a word to the others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from pathlib import Path

import pytest
from poolkit import jail_of, know, said, until, zygote_hosts

from atoll.jail.measure import cgroup
from atoll.jail.supervisor.client import supervisor
from atoll.types import Outcome


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
async def test_destroyed_in_any_order(family, order):
    boxes = [await family.open()]
    await said(boxes[0], "x = 1")
    boxes.append(await family.fork(boxes[0]))
    boxes.append(await family.fork(boxes[1]))
    left = list(boxes)
    for number in order:
        await boxes[number].destroy()
        left.remove(boxes[number])
        for one in left:
            assert await said(one, "print(x)") == "1"


async def test_many_families_end_at_once(family):
    """Ends of clone and jail come in one round of the supervisor's loop, in either order."""
    pid = supervisor.pid
    for _ in range(15):
        box = await family.open()
        clones = [await family.fork(box) for _ in range(2)]
        await asyncio.gather(*(one.destroy() for one in (*clones, box)))
    assert pid is None or supervisor.pid == pid
    assert await said(await family.open(), "print(1)") == "1"


async def test_a_destroyed_session_takes_its_checkpoints_along(family):
    box = await family.open()
    await know(box)
    alone = len(jail_of(box))
    for _ in range(3):
        await box.checkpoint()
    assert len(jail_of(box)) == alone + 3
    await box.destroy()
    assert box._marks == {}
    other = await family.open()
    assert await said(other, "print(1)") == "1"


LEAVE = """
import os, subprocess, time
subprocess.Popen(['sleep', '300'], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
os.wait()
"""
CHAIN = """
import os
if os.fork() == 0:
    os.setsid()
    while os.fork() == 0:
        pass
    os._exit(0)
"""


@pytest.mark.spec("R2.11")
@pytest.mark.parametrize("code", [LEAVE, CHAIN], ids=["orphans", "chain"])
async def test_what_a_clone_leaves_behind_goes_with_it(family, code):
    box = await family.open()
    await know(box)
    alone = jail_of(box)
    clone = await family.fork(box)
    await said(clone, code)
    await asyncio.sleep(0.1)
    await clone.destroy()
    await until(lambda: jail_of(box) <= alone | _zombies(box))
    assert await said(box, "print('lives')") == "lives"


async def test_what_the_first_leaves_behind_goes_with_it_while_a_clone_lives(family):
    box = await family.open()
    await know(box)
    alone = len(jail_of(box))
    await said(box, LEAVE)
    clone = await family.fork(box)
    await know(clone)
    before = jail_of(clone)
    await box.destroy()
    await until(lambda: len(jail_of(clone)) == alone)  # with the clone in its place
    assert jail_of(clone) < before
    assert await said(clone, "print('lives')") == "lives"


async def test_a_clone_that_dies_is_told_and_the_others_are_not(family):
    box = await family.open()
    await said(box, "x = 1")
    clone = await family.fork(box)
    result = await clone.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (result.kind, result.state_lost) == (Outcome.CRASHED, True)
    assert await said(box, "print(x)") == "1"
    assert await said(clone, "print('x' in globals())") == "False"


async def test_a_clone_over_its_memory_ends_alone(family):
    box = await family.open(memory_bytes=64 << 20)
    await said(box, "x = 1")
    clone = await family.fork(box)
    eat = """
import os, resource
resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
kept = [bytearray(b'x') * (1 << 20) for _ in range(400)]
"""
    result = await clone.execute(eat)
    assert (result.kind, result.state_lost) == (Outcome.MEMORY, True)
    assert await said(box, "print(x)") == "1"


async def test_a_signal_to_all_stays_in_the_family(family):
    """Clones share pid 1 and a Landlock domain: kill(-1) reaches siblings, and nobody else.

    What it ends is told as lost, and every session can be used again.
    """
    box, stranger = await family.open(), await family.open()
    await said(box, "x = 1")
    await said(stranger, "x = 1")
    clone = await family.fork(box)
    mark = await box.checkpoint()
    await said(clone, "import os, signal; os.kill(-1, signal.SIGKILL)")
    await until(lambda: box._guest.session.dead and box._marks[mark].session.dead)
    assert await said(clone, "print(x)") == "1"  # kill(-1) spares whoever calls it
    result = await box.execute("print('x' in globals())")
    assert (result.stdout, result.state_lost) == ("False\n", True)
    assert await said(stranger, "print(x)") == "1"


@pytest.mark.parametrize("what", ["fork", "checkpoint", "open"])
async def test_whoever_asked_may_go_away_at_any_moment(family, what):
    box = await family.open()
    await said(box, "x = 1; open('f', 'wb').write(bytes(1 << 20))")
    box._guest.session.grace_seconds = 10  # a busy machine: the guest may be slow to answer
    pid, moments = supervisor.pid, random.Random(3)
    call = {"fork": box.fork, "checkpoint": box.checkpoint, "open": family.open}[what]
    for _ in range(25):
        asked = asyncio.ensure_future(call())
        await asyncio.sleep(moments.uniform(0, 0.04))
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            if what != "checkpoint":
                family.keep(await asked)
    assert supervisor.pid == pid
    assert await said(box, "print(x)") == "1"
    assert await said(await family.fork(box), "print(x)") == "1"


async def test_a_fork_that_gets_no_process_leaves_the_session_alone(family):
    box = await family.open(max_processes=3)
    await said(box, "import os, time; x = 1")
    full = """
held = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        held.append(pid)
except OSError:
    pass
"""
    await said(box, full)
    with pytest.raises(Exception, match="no clone can be had"):
        await box.fork()
    await said(
        box, "import signal\nfor pid in held: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)"
    )
    clone = await family.fork(box)
    assert await said(clone, "print(x)") == "1"


def _zombies(box) -> set[int]:
    """Clones are the guest's children: it reaps them when it forks the next."""
    from pathlib import Path

    found = set()
    for pid in jail_of(box):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            found.add(pid)
    return found


async def test_a_zygote_host_that_waits_ahead_for_clones_stays_in_its_control_group(family):
    """It moves into the group that it is in, so that the kernel waits while the guest forks."""
    box = await family.open()
    before = _control_groups()
    assert before
    twin = await family.fork(box)
    assert await said(await family.fork(twin), "print(1)") == "1"
    assert before.items() <= _control_groups().items()  # a process that makes mounts may be there
    found = cgroup.find()
    if found is None or found.version != 1:
        pytest.skip("the kernel waits before each move, or there are no control groups")
    for pid in before:
        assert any(link.endswith("/cgroup.procs") for link in _open_files(pid))


def _control_groups() -> dict[int, str]:
    return {pid: Path(f"/proc/{pid}/cgroup").read_text() for pid in zygote_hosts()}


def _open_files(pid: int) -> list[str]:
    return [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]

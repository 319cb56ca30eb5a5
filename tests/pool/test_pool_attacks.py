"""Hostile code in a pooled session and in a clone: it has the runtime in its hands, and no more."""

from __future__ import annotations

import contextlib
import json
import os
import time

import pytest
from poolkit import jail_of, know, said, until

from atoll.errors import AtollError, SandboxStartError
from atoll.hosting.pool import sandbox as hosts_part
from atoll.jail.supervisor import shared_jail
from atoll.jail.supervisor.client import supervisor
from atoll.jail.supervisor.shared_jail import MAX_REFUSALS

NOBODY = 65534
CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
BOTH = (1 << 18) | (1 << 21)
def capset(effective=BOTH, permitted=BOTH):
    sets = (ctypes.c_uint32 * 6)(effective, permitted, 0, 0, 0, 0)
    return libc.capset(ctypes.byref(header), sets)
def effective():
    with open('/proc/self/status') as status:
        return int(next(line for line in status if line.startswith('CapEff')).split()[1], 16)
def attempt(call, *args):
    ctypes.set_errno(0)
    return 0 if getattr(libc, call)(*args) == 0 else ctypes.get_errno()
"""
HOLD_THE_RUNTIME = (
    CALLS
    + """
frame = sys._getframe()
while type(frame.f_locals.get('self')).__name__ != 'ProcessServer':
    frame = frame.f_back
server = frame.f_locals['self']
clone = server._fork.__func__.__globals__['clone']
"""
)
REFUSED, UNHEARD = 1, 38


@pytest.fixture(params=["guest", "clone"])
async def box(request, family):
    one = await family.open()
    return one if request.param == "guest" else await family.fork(one)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A clone that never comes is given up sooner."""
    monkeypatch.setattr(hosts_part, "START_SECONDS", 2)


async def test_dormant_rights_do_not_wake_unasked(box):
    code = """
print(attempt('unshare', 0x20000), attempt('chroot', b'/app'), attempt('setns', 0, 0))
print(capset(), ctypes.get_errno(), effective())
print(capset(BOTH, BOTH | 1), effective())
if os.fork() == 0:
    print(capset(), effective(), flush=True)
    os._exit(0)
os.wait()
"""
    lines = (await said(box, CALLS + code)).split("\n")
    assert lines == ["1 1 1", "-1 1 0", "-1 0", "-1 0"]


async def test_who_asks_too_often_is_not_heard_any_more(family):
    box = await family.open()
    code = f"""
answers = [attempt('unshare', 0x20000) for _ in range({MAX_REFUSALS + 50})]
print(answers[0], answers[-1], set(answers))
"""
    assert await said(box, CALLS + code) == f"{REFUSED} {UNHEARD} {{{REFUSED}, {UNHEARD}}}"
    with pytest.raises(AtollError, match="this jail allows none"):
        await box.fork()
    assert await said(box, "print('lives')") == "lives"
    stranger = await family.open()
    assert await said(await family.fork(stranger), "print('others can')") == "others can"


async def test_a_program_that_is_executed_has_no_rights_at_all(box):
    code = "import subprocess; print(subprocess.run(['grep', 'Cap', '/proc/self/status'], capture_output=True, text=True).stdout)"
    assert {line.split()[1] for line in (await said(box, code)).split("\n")} == {"0" * 16}


async def test_nothing_can_be_seen_of_other_processes(family):
    box = await family.open()
    clone = await family.fork(box)
    code = """
import os
found = []
for pid in range(1, 40):
    if pid != os.getpid():
        for name in ('mem', 'environ', 'root', 'fd', 'ns/user', 'ns/mnt', 'cwd', 'maps', 'task'):
            try:
                os.stat(f'/proc/{pid}/{name}')
                found.append((pid, name))
            except OSError:
                pass
print(found, [name for name in os.listdir('/proc') if name.isdigit()] == [str(os.getpid())])
"""
    for one in (box, clone):
        assert await said(one, code) == "[] True"


async def test_pid_1_cannot_be_killed(box):
    code = """
import os, signal
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
print('lives')
"""
    assert await said(box, code) == "lives"
    assert await said(box, "print('still')") == "still"


async def test_users_and_groups_stay_those_of_the_guest(box):
    code = """
import os
for call, args in ((os.setuid, (0,)), (os.setgid, (0,)), (os.setresuid, (0, 0, 0)), (os.setgroups, ([0],))):
    try:
        call(*args)
        print(call)
    except OSError:
        pass
for name in ('uid_map', 'gid_map', 'setgroups'):
    try:
        open('/proc/self/' + name, 'w').write('0 0 1')
        print(name)
    except OSError:
        pass
print(os.getresuid(), os.getgroups(), open('/proc/self/uid_map').read().split()[0::2])
"""
    assert await said(box, code) == f"(1000, 1000, 1000) {_groups_of_a_guest()} ['1000', '1']"


KEEP_RIGHTS = """
clone._set_capabilities = lambda _: capset()
"""
ELSEWHERE = """
def call(name, *args):
    if name == 'setns':
        found = []
        for path in ('/proc/1/ns/mnt', '/proc/1/ns/user', '/proc/1/root'):
            try:
                found.append(os.open(path, os.O_RDONLY))
            except OSError:
                pass
        own = os.open('/proc/self/ns/user', os.O_RDONLY)
        results = [libc.setns(fd, 0) for fd in (*found, own)]
        open('/tmp/escaped', 'w').write(repr(results))
    original(name, *args)
original = clone._call
clone._call = call
"""
OTHER_FLAGS = """
def call(name, *args):
    original(name, *((0x10000000,) if name == 'unshare' else args))
original = clone._call
clone._call = call
"""
NEVER_ANSWERS = """
import time
clone.enter = lambda *_: time.sleep(60)
"""
EXITS = "clone.enter = lambda *_: os._exit(0)"
LIES = """
import _socket
def enter(status, folder):
    end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, status)
    for word in (b'entered', b'here', b'go'):
        end.send(word)
clone.enter = enter
"""
TALKS = """
import _socket
def enter(status, folder):
    end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, status)
    while True:
        end.send(b'x' * 60)
clone.enter = enter
"""
TWINS = """
def enter(status, folder):
    os.fork()
    original(status, folder)
original = clone.enter
clone.enter = enter
"""
ASKS_IN_A_THREAD = """
import threading
def enter(status, folder):
    threads = [threading.Thread(target=capset) for _ in range(8)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    original(status, folder)
original = clone.enter
clone.enter = enter
"""
DIES_ASKING = """
import signal
def enter(status, folder):
    me = os.getpid()
    if os.fork() == 0:
        os.kill(me, signal.SIGKILL)
        os._exit(0)
    for _ in range(20):
        capset()
clone.enter = enter
"""
DIES_HALFWAY = """
def call(name, *args):
    if name in ('setns', 'unshare'):
        me = os.getpid()
        if os.fork() == 0:
            os.kill(me, 9)
            os._exit(0)
    original(name, *args)
original = clone._call
clone._call = call
"""
HIJACKS = {
    "keeps-rights": KEEP_RIGHTS, "elsewhere": ELSEWHERE, "other-flags": OTHER_FLAGS,
    "never-answers": NEVER_ANSWERS, "exits": EXITS, "lies": LIES, "talks": TALKS, "twins": TWINS,
    "asks-in-a-thread": ASKS_IN_A_THREAD, "dies-asking": DIES_ASKING,
    "dies-halfway": DIES_HALFWAY,
}  # fmt: skip
HARMLESS = """
import os
found = []
for folder in ('/', '/usr', '/etc', '/opt/atoll', '/proc/sys/kernel'):
    try:
        open(folder + '/x', 'w')
        found.append(folder)
    except OSError:
        pass
found += [call for call in ('unshare', 'chroot', 'setns') if attempt(call, 0x20000, 0) == 0]
found += [pid for pid in range(1, 30) if pid != os.getpid() and os.path.exists(f'/proc/{pid}/root')]
found.append(open('/proc/self/mountinfo').read())
print([one for one in found if one])
"""


@pytest.mark.parametrize("hijack", HIJACKS.values(), ids=HIJACKS)
async def test_a_runtime_that_was_taken_over_gains_nothing_by_a_fork(family, hijack):
    stranger = await family.open()
    pid, started = supervisor.pid, time.monotonic()
    for _ in range(2):
        box = await family.open(timeout_ms=3000)
        await said(box, HOLD_THE_RUNTIME + hijack)
        for _ in range(2):
            with contextlib.suppress(AtollError):  # it may be refused, but not let go further
                assert await said(await family.fork(box), HARMLESS) == "[]"
        assert await said(box, HARMLESS) == "[]"
        await box.destroy()
    assert supervisor.pid == pid
    assert time.monotonic() - started < 60
    assert await said(await family.fork(stranger), "print('as ever')") == "as ever"


async def test_a_process_left_halfway_does_not_stay(family):
    """Forked off the clone while it was in a namespace that no session keeps."""
    box = await family.open()
    await know(box)
    alone = jail_of(box)
    halfway = """
def call(name, *args):
    original(name, *args)
    if name == 'setns' and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import time
            time.sleep(300)
        os._exit(0)
original = clone._call
clone._call = call
"""
    await said(box, HOLD_THE_RUNTIME + halfway)
    clone = await family.fork(box)
    assert len(jail_of(box)) > len(alone) + 1
    await clone.destroy()
    await until(lambda: not [pid for pid in jail_of(box) - alone if _lives(pid)])


async def test_no_right_stays_awake(family):
    """Not in the clone, nor in a thread or a process that it made while it was one in the making."""
    awake = """
import threading, time
def enter(status, folder):
    capset = clone._set_capabilities
    def and_more(rights):
        capset(rights)
        if rights:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            if os.fork() == 0:
                time.sleep(60)
    clone._set_capabilities = and_more
    original(status, folder)
original = clone.enter
clone.enter = enter
"""
    box = await family.open()
    mark = await box.checkpoint()
    await know(box)
    for hijack in (KEEP_RIGHTS, awake):
        await said(box, HOLD_THE_RUNTIME + hijack)
        with pytest.raises(AtollError, match="clone"):
            await box.fork()
        await until(lambda: not [pid for pid in jail_of(box) if _has_capabilities(pid)])
        await box.rollback(mark)


async def test_children_that_ask_while_the_host_forks(family):
    """A race for the clone's place: whoever wins it is only a clone, and the supervisor lives."""
    pid = (await family.open(), supervisor.pid)[1]
    race = """
import threading
def ask():
    for turn in range(6):
        child = os.fork()
        if child == 0:
            thread = threading.Thread(target=capset); thread.start(); thread.join()
            capset()
            os._exit(0)
        if turn % 2:
            os.kill(child, 9)
        os.waitpid(child, 0)
threading.Thread(target=ask, daemon=True).start()
"""
    for _ in range(5):
        box = await family.open(timeout_ms=5000)
        await said(box, CALLS + race)
        with contextlib.suppress(AtollError):
            assert await said(await family.fork(box), HARMLESS) == "[]"
        await box.destroy()
    assert supervisor.pid == pid


async def test_a_folder_in_motion_while_it_is_copied(family):
    """Names change under the helper's hands: the clone comes up or is refused, in words."""
    box = await family.open(disk_bytes=32 << 20)
    await said(
        box,
        """
import os, threading
os.makedirs('a/b/c/d'); os.makedirs('e')
open('a/f', 'wb').write(b'x' * 100_000)
going = True
def stir():
    while going:
        for old, new in (('a/b/c', 'e/c'), ('e/c', 'a/b/c'), ('a/f', 'a/g'), ('a/g', 'a/f')):
            try:
                os.rename(old, new)
                os.truncate('a/f', 10); os.truncate('a/f', 100_000)
                os.symlink('/usr', 'a/l'); os.remove('a/l')
            except OSError:
                pass
threading.Thread(target=stir, daemon=True).start()
""",
    )
    for _ in range(8):
        with contextlib.suppress(SandboxStartError):
            clone = await box.fork()
            seen = "import os; print(os.path.isdir('usr') or any('bin' in d for _, d, _ in os.walk('/app')))"
            assert await said(clone, seen) == "False"
            await clone.destroy()
    await said(box, "going = False")


async def test_descriptors_that_a_guest_took_for_itself(family):
    """Those of its own clone are all that ever come; a stolen one stalls its own fork."""
    box = await family.open(timeout_ms=3000)
    steal = """
taken = []
def receive():
    taken.append(original())
    return os.open('/dev/null', os.O_RDWR)
rights = type(server)._fork.__globals__['rights']
original, rights.receive = rights.receive, receive
"""
    await said(box, HOLD_THE_RUNTIME + steal)
    with pytest.raises(AtollError):
        await box.fork()
    kinds = "print(sorted({os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in taken}))"
    result = await box.execute(kinds)
    assert result.state_lost or json.loads(result.stdout.replace("'", '"')) == ["socket"]
    assert await said(box, "print('goes on')") == "goes on"


def _groups_of_a_guest() -> list[int]:
    """None; an ordinary user cannot drop any, but they are nobody's inside, its own excepted."""
    if os.geteuid() == 0:
        return []
    return [1000 if group == os.getgid() else NOBODY for group in os.getgroups()]


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _has_capabilities(pid: int) -> bool:
    """Whether a process has rights in effect; the jail's first one only sleeps in the kernel."""
    return _lives(pid) and shared_jail.has_capabilities(pid) and not _is_first(pid)


def _is_first(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        numbers = next(line for line in file if line.startswith("NSpid:"))
        return numbers.split()[-1] == "1"
    return False

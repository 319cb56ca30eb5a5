"""Nothing of one guest is seen by the next, though both are forks of one zygote."""

from __future__ import annotations

import asyncio
import os

import pytest
from poolkit import said

POISON = """
import json, os, sys, builtins, signal, resource, tempfile, socket
mine = 1
json.dumps = lambda *_: 'poison'
builtins.len = lambda _: 42
sys.modules['math'] = sys
sys.path.insert(0, '/app')
os.environ['POISON'] = '1'
os.umask(0)
os.nice(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
sys.setrecursionlimit(99_999)
for folder in ('/app', '/tmp', '/dev/shm', '/home/guest'):
    open(folder + '/left', 'w').write('x')
listening = socket.socket(); listening.bind(('127.0.0.1', 7777)); listening.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0abstract'); abstract.listen()
"""
LOOK = """
import builtins, json, math, os, resource, signal, socket, sys
found = [folder for folder in ('/app', '/tmp', '/dev/shm', '/home/guest') if [n for n in os.listdir(folder) if not sys.prefix.startswith(folder + '/' + n)]]
found += [name for name in ('mine', 'listening') if name in globals()]
found += [name for name, bad in {
    'json': json.dumps(1) != '1', 'len': len('a') != 1, 'math': not hasattr(math, 'pi'),
    'path': sys.path[0] == '/app', 'environ': 'POISON' in os.environ, 'umask': os.umask(0o22) != 0o22,
    'nice': os.nice(0) != NICE, 'signal': signal.getsignal(signal.SIGTERM) != signal.SIG_DFL,
    'files': resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64,
    'recursion': sys.getrecursionlimit() == 99_999}.items() if bad]
for family, address in ((socket.AF_INET, ('127.0.0.1', 7777)), (socket.AF_UNIX, '\\0abstract')):
    try:
        socket.socket(family).connect(address)
        found.append(address)
    except OSError:
        pass
print(found)
""".replace("NICE", str(os.nice(0)))
CHANCE = """
import os, random, secrets, tempfile, uuid
print(random.random(), random.getrandbits(64), uuid.uuid4(), uuid.uuid1(), secrets.token_hex(),
      tempfile.mktemp(), os.urandom(8).hex(), sep='\\n')
"""
CALLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for name, number in NUMBERS.items():
    ctypes.set_errno(0)
    answers[name] = libc.syscall(number, 1, 2, 3, 4, 5) < 0 and ctypes.get_errno() in (1, 38)
print([name for name, refused in answers.items() if not refused])
"""
NUMBERS = {
    "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240, "add_key": 248,
    "request_key": 249, "keyctl": 250, "ptrace": 101, "process_vm_readv": 310,
    "process_vm_writev": 311, "pidfd_getfd": 438, "mount": 165, "umount2": 166, "pivot_root": 155,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "mount_setattr": 442, "bpf": 321,
    "perf_event_open": 298, "io_uring_setup": 425, "userfaultfd": 323, "clone3": 435,
    "landlock_restrict_self": 446, "seccomp": 317, "memfd_create": 319, "sethostname": 170,
}  # fmt: skip


@pytest.mark.spec("R2.10")
async def test_nothing_of_one_guest_is_seen_by_the_next(family):
    first = await family.open()
    beside = await family.open()
    await said(first, POISON)
    assert await said(beside, LOOK) == "[]"
    assert await said(await family.open(), LOOK) == "[]"
    await first.destroy()
    assert await said(await family.open(), LOOK) == "[]"


@pytest.mark.spec("R2.10")
async def test_a_session_that_starts_afresh_sees_nothing_either(family):
    box = await family.open()
    await said(box, POISON)
    await box.initialize()
    assert await said(box, LOOK) == "[]"


async def test_chance_differs_between_guests_of_one_zygote(family):
    boxes = [await family.open() for _ in range(3)]
    rows = zip(*[(await said(box, CHANCE)).split("\n") for box in boxes], strict=True)
    for row in rows:
        assert len(set(row)) == len(row), row


async def test_numpy_draws_differ_between_guests_of_one_zygote(family):
    pytest.importorskip("pandas")
    draw = "print(np.random.rand(), np.random.default_rng().random(), pd.Series(range(99)).sample(5).tolist())"
    boxes = [await family.open(preload="numeric") for _ in range(2)]
    first, second = [await said(box, draw) for box in boxes]
    assert not set(first.split(" ", 2)) & set(second.split(" ", 2))


async def test_objects_that_would_outlive_a_guest_cannot_be_made(family):
    import platform

    if platform.machine() != "x86_64":
        pytest.skip("the numbers are x86_64's")
    box = await family.open()
    code = CALLS.replace("NUMBERS", repr(NUMBERS))
    assert await said(box, code) == "[]"
    assert await said(await family.fork(box), code) == "[]"


async def test_guests_at_one_time_do_not_mix_their_output(family):
    boxes = [await family.open() for _ in range(6)]

    async def talk(number):
        code = f"for i in range(200): print('guest {number}', i)"
        return await said(boxes[number], code)

    for number, text in enumerate(await asyncio.gather(*map(talk, range(6)))):
        assert text == "\n".join(f"guest {number} {i}" for i in range(200))


async def test_a_fresh_guest_has_no_descriptor_too_many(family):
    code = """
import os
kinds = {}
for fd in os.listdir('/proc/self/fd'):
    try:
        kinds[int(fd)] = os.readlink('/proc/self/fd/' + fd).split(':')[0]
    except OSError:
        pass
print(sorted(kinds.values()))
"""
    expected = ["/dev/null", *["pipe"] * 6]
    box = await family.open()
    assert await said(box, code) == str(expected)
    assert await said(await family.fork(box), code) == str(expected)


async def test_a_guest_is_not_told_of_the_host(family, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "dolphin")
    box = await family.open()
    text = await said(
        box, "print(open('/proc/self/environ').read(), open('/proc/self/cmdline').read())"
    )
    assert "dolphin" not in text
    find = "memory = b''.join(read())\nprint(bytes(reversed(b'nihplod')) in memory)"
    read = """
def read():
    for line in open('/proc/self/maps'):
        span, mode = line.split()[:2]
        if 'r' in mode and 'vv' not in line and 'vsyscall' not in line:
            first, last = (int(end, 16) for end in span.split('-'))
            with open('/proc/self/mem', 'rb') as memory:
                memory.seek(first)
                try:
                    yield memory.read(last - first)
                except OSError:
                    pass
"""
    assert await said(box, read + find) == "False"

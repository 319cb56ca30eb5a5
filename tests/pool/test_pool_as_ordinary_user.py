"""Pool and clones for a user who is not root: other walls, no control group, the same behaviour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ordinary_user import SOURCE, python_for_user, run_as_user

HERE = Path(__file__).resolve().parent
PROGRAM = """
import asyncio, os, signal, sys
from poolkit import Family, MIB, know, jail_of, zygote_hosts, said, until, zygotes
from atoll.hosting.pool import Pool

async def main():
    assert os.geteuid() != 0
    async with Pool() as pool:
        family = Family(pool)
        await TEST(family)
        await family.close()
    print('held')

async def state_and_files(family):
    box = await family.open(context='c' * 2_000_000)
    await said(box, "x = [1]; g = iter('abc'); next(g); open('f', 'w').write('one')")
    clone = await family.fork(box)
    mark = await box.checkpoint()
    await said(clone, "x.append(2); open('f', 'a').write('!')")
    await said(box, "x.clear(); open('f', 'w').close()")
    assert await said(clone, "print(x, next(g), open('f').read(), len(context))") == "[1, 2] b one! 2000000"
    await box.rollback(mark)
    assert await said(box, "print(x, open('f').read())") == "[1] one"
    grandchild = await family.fork(clone)
    await clone.destroy()
    assert await said(grandchild, "print(x)") == "[1, 2]"

async def apart(family):
    box, other = await family.open(), await family.open()
    await said(box, "open('/tmp/left', 'w').close(); import os; os.environ['LEFT'] = '1'")
    look = "import os; print('left' in os.listdir('/tmp'), 'LEFT' in os.environ, os.getuid(), repr(open('/proc/self/mountinfo').read()))"
    for one in (other, await family.open()):
        assert await said(one, look) == "False False 1000 ''"
    code = "import ctypes; print([getattr(ctypes.CDLL(None), c)(0x20000, 0) for c in ('unshare', 'chroot', 'setns')])"
    assert await said(await family.fork(box), code) == "[-1, -1, -1]"

async def walls(family):
    from test_walls import test_walls_are_the_same_on_every_path
    await test_walls_are_the_same_on_every_path(family)

async def shared_kernel(family):
    from kernel_attacks import bitten
    from atoll.aio import create_sandbox
    box, origin = await family.open(), await family.open()
    async with create_sandbox(backend='native', timeout_ms=20_000) as cold:
        found = [await bitten(cold), await bitten(box), await bitten(await family.fork(origin))]
        assert found == [{}, {}, {}], found

async def limits(family):
    box = await family.open(memory_bytes=100 * MIB, max_processes=6, disk_bytes=8 * MIB)
    stranger = await family.open()
    await said(stranger, "held = bytearray(b'x') * (200 << 20)")
    await said(box, "held = bytearray(b'x') * (40 << 20)")
    clone = await family.fork(box)
    await said(clone, "more = bytearray(b'x') * (30 << 20)")
    await asyncio.sleep(0.5)
    assert await said(clone, "print(len(held) >> 20)") == '40'
    eat = '''
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            q = bytearray(b'x') * (80 << 20)
            time.sleep(30)
        os._exit(0)
time.sleep(5)
'''
    result = await clone.execute(eat)
    assert result.kind == 'memory', result
    assert await said(box, "print(len(held) >> 20)") == '40'
    assert 'No space' in (await box.execute("open('b', 'wb').write(bytes(9 << 20))")).error
    result = await box.execute("import os, time\\nfor _ in range(20):\\n    if os.fork() == 0: time.sleep(20)")
    assert 'Resource temporarily' in result.error, result

async def few_open_files(family):
    import array, socket
    from_here, kept = socket.socketpair()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 100))]
    from_here.sendmsg([b'x'], rights)  # never received: 100 descriptors of this user are in flight
    box = await family.open(max_open_files=24)
    assert await said(box, "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))") == '(24, 24)'

async def losses(family):
    box = await family.open()
    await said(box, 'x = 1')
    os.kill(zygotes()[0], signal.SIGKILL)
    assert await said(box, 'print(x)') == '1'
    assert await said(await family.open(), "print('new')") == 'new'
    clone = await family.fork(box)
    await know(box)
    before = jail_of(box)
    await said(clone, "import subprocess; subprocess.Popen(['sleep', '99'], start_new_session=True)")
    assert jail_of(box) > before
    await clone.destroy()
    await until(lambda: len(jail_of(box)) <= len(before))
    os.kill(zygote_hosts()[0], signal.SIGKILL)
    await until(lambda: box._guest.session.dead)
    assert (await box.execute('1')).state_lost

TEST = globals()[sys.argv[1]]
asyncio.run(main())
"""


@pytest.mark.spec("R2.10")
@pytest.mark.parametrize(
    "test",
    ["state_and_files", "apart", "walls", "shared_kernel", "limits", "few_open_files", "losses"],
)
def test_as_ordinary_user(test):
    if os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    paths = {"PYTHONPATH": f"{SOURCE}:{HERE}"}
    done = run_as_user(python_for_user(), "-c", PROGRAM, test, timeout=100, **paths)
    assert done.stdout == "held\n", done.stderr[-3000:]

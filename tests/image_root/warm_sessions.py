"""What warm sessions with a writable root do: run by tests, and by a user who is not root."""

from __future__ import annotations

import asyncio
import sys

from atoll.config import SandboxConfig
from atoll.hosting.pool import Pool
from atoll.policy import ExecutionPolicy

MIB = 1 << 20
CHANGE = """
import os, shutil
x = [1]
os.remove('/etc/os-release')
shutil.rmtree('/var/data')
os.mkdir('/var/data')
open('/var/data/new', 'w').write('1')
open('/usr/bin/new', 'w').write('1')
os.symlink('/nowhere', '/srv/link')
os.mkfifo('/srv/fifo')
open('f', 'w').write('1')
"""
LOOK = """
import os
sorted(os.listdir('/var/data')), os.path.exists('/etc/os-release'), open('/usr/bin/new').read(), \\
    os.readlink('/srv/link'), open('f').read(), open('/app/f').read(), os.path.exists('/srv/n')
"""
CHANGED = (["new"], False, "1", "/nowhere", "1", "1", False)


async def fork_and_roll_back(image: str) -> None:
    config = SandboxConfig(image=image, writable_root=True)
    async with Pool() as pool:
        box = await pool.open(config)
        result = await box.execute(CHANGE)
        assert (result.error, result.cold_start) == (None, None)
        assert (await box.execute(LOOK)).value == CHANGED
        mark = await box.checkpoint()
        twin = await box.fork()
        assert (await twin.execute(LOOK)).value == CHANGED
        assert (await twin.execute("x")).value == [1]
        await twin.execute("open('/srv/n', 'w'); os.remove('/usr/bin/new'); x.append(2)")
        nephew = await twin.fork()
        assert (await nephew.execute("os.path.exists('/srv/n'), x")).value == (True, [1, 2])
        assert (await nephew.shell("ls /usr/bin/new")).exit_code != 0
        assert (await box.execute(LOOK)).value == CHANGED
        await box.execute("os.remove('/usr/bin/new'); open('/srv/n', 'w'); x.append(3)")
        await box.rollback(mark)
        assert (await box.execute(LOOK)).value == CHANGED
        assert (await box.execute("x")).value == [1]
        fresh = await pool.run("import os; os.listdir('/var/data'), os.listdir('/srv')", config)
        assert (fresh.value, fresh.cold_start) == ((["old"], []), None)
        await asyncio.gather(box.destroy(), twin.destroy(), nephew.destroy())


async def look_around(image: str) -> None:
    async with Pool() as pool:
        box = await pool.open(SandboxConfig(image=image, writable_root=True))
        twin = await box.fork()
        for one in (box, twin):
            result = await one.execute(
                "import os; names = set(os.listdir('/')); os.listdir('/.box'), '.image' in names, "
                "sorted(os.listdir('/dev')), os.listdir('/proc/self/fd') != []"
            )
            assert result.error is None
            devices = result.value[2]
            assert (result.value[0], result.value[3]) == ([], True)
            assert {"null", "pts", "shm", "tty", "urandom"} <= set(devices)
            assert (await one.shell("grep CapEff /proc/self/status")).output.split()[1] == "0" * 16
            assert (await one.shell("cat /proc/self/mountinfo")).output.strip() == ""
            assert (await one.shell("echo x > /dev/null; ls /opt/atoll")).exit_code == 0
            refused = await one.execute("open('/opt/atoll/atoll/written', 'w')")
            assert refused.error_type in ("OSError", "PermissionError")
            process = await one.start("touch /srv/beside")
            assert (await process.wait()).exit_code == 0
            assert (await one.execute("os.path.exists('/srv/beside')")).value is True
        await asyncio.gather(box.destroy(), twin.destroy())


async def write_too_much(image: str) -> None:
    policy = ExecutionPolicy(disk_bytes=8 * MIB)
    async with Pool() as pool:
        box = await pool.open(SandboxConfig(image=image, writable_root=True, policy=policy))
        await box.execute("open('/srv/half', 'wb').write(bytes(5 << 20))")
        too_much = "open('large', 'wb').write(bytes(5 << 20))"
        assert "No space" in str((await box.execute(too_much)).error)
        twin = await box.fork()
        assert "No space" in str((await twin.execute(too_much)).error)
        await asyncio.gather(box.destroy(), twin.destroy())


async def commit(image: str, target: str) -> None:
    config = SandboxConfig(image=image, writable_root=True)
    async with Pool() as pool:
        box = await pool.open(config)
        assert (await box.execute(CHANGE)).error is None
        twin = await box.fork()
        await twin.execute("open('/srv/n', 'w')")
        await box.commit(f"{target}:box")
        await twin.commit(f"{target}:twin")
        state = await twin.save()
        await asyncio.gather(box.destroy(), twin.destroy())
        look = await pool.run(LOOK, SandboxConfig(image=f"{target}:box"))
        assert (look.value, look.cold_start) == (CHANGED, None)
        config = SandboxConfig(image=f"{target}:twin", state=state)
        look = await pool.run(f"x.append(2)\n{LOOK}", config)
        assert look.value == (*CHANGED[:-1], True)


async def all_of(image: str, target: str) -> None:
    """Do all of it."""
    await fork_and_roll_back(image)
    await look_around(image)
    await write_too_much(image)
    await commit(image, target)


if __name__ == "__main__":
    asyncio.run(all_of(*sys.argv[1:]))
    print("done")

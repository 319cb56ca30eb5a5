"""The files of a clone: copies of all that was there, apart in both directions, whatever it is."""

from __future__ import annotations

import pytest
from poolkit import MIB, said

from atoll.errors import SandboxError

FOLDERS = ("/app", "/tmp", "/dev/shm", "/home/guest")


@pytest.mark.parametrize("folder", FOLDERS)
async def test_files_are_apart_in_both_directions(family, folder):
    box = await family.open()
    await said(box, f"open('{folder}/both', 'w').write('one')")
    clone = await family.fork(box)
    await said(
        box, f"open('{folder}/both', 'a').write(' first'); open('{folder}/first', 'w').close()"
    )
    await said(
        clone, f"open('{folder}/both', 'a').write(' second'); open('{folder}/second', 'w').close()"
    )
    look = f"import os, sys; print(open('{folder}/both').read(), sorted(n for n in os.listdir('{folder}') if not sys.prefix.startswith('{folder}/' + n)))"
    assert await said(box, look) == "one first ['both', 'first']"
    assert await said(clone, look) == "one second ['both', 'second']"


@pytest.mark.spec("R3.11")
async def test_files_from_outside_are_each_ones_own(family):
    box = await family.open()
    await box.files.write("both", "one")
    clone = await family.fork(box)
    await clone.files.edit("both", "one", "two")
    assert await said(box, "print(open('both').read())") == "one"
    assert await said(clone, "print(open('both').read())") == "two"


async def test_an_open_file_is_still_the_firsts(family):
    """Descriptors are inherited: they lead to the first one's file, and share its place."""
    box = await family.open()
    await said(box, "file = open('log', 'w+'); file.write('one'); file.flush()")
    clone = await family.fork(box)
    await said(clone, "file.write(' two'); file.flush()")
    assert await said(box, "print(open('log').read())") == "one two"
    assert await said(clone, "print(open('log').read())") == "one"


async def test_files_reported_by_a_clone_are_its_own(family):
    box = await family.open()
    await said(box, "open('a.txt', 'w').write('1')")
    clone = await family.fork(box)
    result = await clone.execute("open('b.txt', 'w').write('2'); open('a.txt', 'a').write('3')")
    assert (result.files_created, result.files_modified) == (("b.txt",), ("a.txt",))
    assert (await box.execute("1")).files == ()


async def test_odd_things_are_copied_as_they_are(family):
    box = await family.open()
    await said(
        box,
        """
import os, socket
os.symlink('/etc/passwd', 'outside'); os.symlink('../../..', 'upwards'); os.symlink('loop', 'loop')
os.mkfifo('fifo', 0o600)
with open('sparse', 'wb') as file:
    file.seek(100 << 20); file.write(b'end')
open('unreadable', 'w').write('secret'); os.chmod('unreadable', 0)
os.mkdir('closed'); open('closed/inner', 'w').write('in'); os.chmod('closed', 0)
os.mkdir('readonly', 0o500)
open('we\\nird \\udcff', 'w').write('odd')
open('run', 'w').write('#!/bin/sh\\necho ran'); os.chmod('run', 0o755)
socket.socket(socket.AF_UNIX).bind('socket')
""",
    )
    clone = await family.fork(box)
    look = """
import os, stat, subprocess
for name in sorted(os.listdir()):
    info = os.lstat(name)
    link = os.readlink(name) if stat.S_ISLNK(info.st_mode) else ''
    print(ascii(name), stat.filemode(info.st_mode), info.st_size if stat.S_ISREG(info.st_mode) else '', link)
print(os.stat('sparse').st_blocks * 512 < 1 << 20, open('sparse', 'rb').read()[-3:])
os.chmod('unreadable', 0o600); os.chmod('closed', 0o700)
print(open('unreadable').read(), open('closed/inner').read())
print(subprocess.run(['./run'], capture_output=True, text=True).stdout.strip())
"""
    seen, first = await said(clone, look), await said(box, look)
    without = [line for line in first.split("\n") if "socket" not in line]
    assert seen.split("\n") == without
    assert "True b'end'" in seen
    assert "secret in" in seen


@pytest.mark.parametrize(
    "make",
    [
        "for _ in range(2500): os.mkdir('d'); os.chdir('d')",
        "[os.mkdir(str(n)) for n in range(2500)]",
    ],
    ids=["deep", "wide"],
)
async def test_thousands_of_folders(family, make):
    box = await family.open()
    await said(box, f"import os\n{make}\nos.chdir('/app')")
    clone = await family.fork(box)
    count = """
import os
deep, here = 0, os.open('/app', os.O_RDONLY)
while 'd' in os.listdir(here):
    here, old = os.open('d', os.O_RDONLY, dir_fd=here), here
    os.close(old)
    deep += 1
print(max(deep, len(os.listdir('/app'))))
"""
    assert await said(clone, count) == "2500"  # deeper than a path may be long


async def test_a_link_that_leads_out_of_the_folder_copies_nothing(family):
    box = await family.open()
    await said(box, "import os; os.symlink('/usr', 'usr'); os.symlink('/proc/self', 'me')")
    clone = await family.fork(box)
    assert (
        await said(clone, "import os; print(os.path.islink('usr'), os.path.islink('me'))")
        == "True True"
    )


async def test_a_folder_that_outgrows_the_disk_harms_nobody(family):
    """A file without a hole that was mapped twice over: the copy may need what there is not."""
    box = await family.open(disk_bytes=8 * MIB)
    await said(
        box,
        """
import os
open('big', 'wb').write(b'x' * (5 << 20))
for number in range(200):
    os.link('big', f'again {number}')  # links are files of their own in a copy
x = 1
""",
    )
    for call in (box.fork, box.checkpoint):
        with pytest.raises(SandboxError, match="is the disk limit reached"):
            await call()
    assert await said(box, "print(x, len(os.listdir()))") == "1 201"
    await said(box, "[os.remove(f'again {n}') for n in range(200)]")
    assert await said(await family.fork(box), "print(x, os.listdir())") == "1 ['big']"


async def test_a_clone_has_the_disk_limit_of_its_own(family):
    box = await family.open(disk_bytes=8 * MIB)
    await said(box, "open('half', 'wb').write(bytes(4 << 20))")
    clones = [await family.fork(box) for _ in range(3)]
    for one in (box, *clones):
        await said(one, "open('more', 'wb').write(bytes(3 << 20))")
        result = await one.execute("open('most', 'wb').write(bytes(3 << 20))")
        assert "No space left" in result.error


async def test_what_is_read_only_stays_so(family):
    box = await family.open()
    clone = await family.fork(box)
    code = """
import os
for folder in ('/', '/usr', '/etc', '/opt/atoll', '/opt/atoll/atoll', '/proc', '/dev', '/home', '/mnt', '/.box'):
    try:
        open(folder + '/x', 'w')
        print(folder)
    except OSError:
        pass
print(repr(open('/proc/self/mountinfo').read() + open('/proc/mounts').read()))
"""
    for one in (box, clone, await family.fork(clone)):
        assert await said(one, code) == "''"

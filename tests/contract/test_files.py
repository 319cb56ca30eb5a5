"""A sandbox as a workspace: the same operations on files in every backend that has them."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

import atoll
from atoll import Capability
from atoll.backends import registry
from atoll.files.base import Files
from atoll.files.types import FileError
from atoll.policy import Mount

pytestmark = [pytest.mark.needs(Capability.WORKSPACE), pytest.mark.spec("R3.11")]

NAMES = (
    "plain.txt", "with space", "quo'te\"s", "new\nline", "$(touch pwned)", "`id`", "-rf", "*", "é😀",
    ";ls", "a\\b", "sub/folder/file", "x" * 255, ".dot", "~", "%s", "\udcff",
)  # fmt: skip


def paths(infos):
    return [info.path for info in infos]


@pytest.mark.spec("R3.3")
def test_ls_shows_what_the_guest_made(box):
    box.execute("open('a.txt', 'w').write('hello'); import os; os.mkdir('.d'); os.mkdir('sub')")
    hidden, text, sub = box.files.ls()
    assert (hidden.path, hidden.is_dir) == (".d", True)
    assert (text.path, text.is_dir, text.size) == ("a.txt", False, 5)
    assert text.modified_at.endswith("Z")
    assert text.modified_at > "2020"
    assert sub.is_dir
    assert box.files.ls("sub") == box.files.ls("missing") == box.files.ls("a.txt") == []
    assert paths(box.files.ls("/app")) == paths(box.files.ls("/mnt/data")) == paths(box.files.ls())


@pytest.mark.spec("R3.4")
def test_read_gives_numbered_lines(box):
    box.execute("open('a', 'w').write('\\n'.join(f'line {n}' for n in range(1, 3001)))")
    text = box.files.read("a")
    assert text.startswith("     1\tline 1\n     2\tline 2\n")
    assert text.endswith("  2000\tline 2000")
    assert box.files.read("/app/a", offset=2999) == "  3000\tline 3000"
    assert box.files.read("a", 1, 1) == "     2\tline 2"
    assert box.files.read("/nope") == "Error: File '/nope' not found"
    box.execute("open('empty', 'w').close()")
    assert box.files.read("empty") == "System reminder: File exists but has empty contents"


@pytest.mark.spec("R3.5")
def test_read_raw_gives_lines_or_raises(box):
    box.execute("open('a b', 'w').write('1\\n2')")
    data = box.files.read_raw("a b")
    assert data.content == ["1", "2"]
    assert data.created_at.endswith("Z")
    assert data.modified_at.endswith("Z")
    with pytest.raises(FileNotFoundError, match="File 'no' not found"):
        box.files.read_raw("no")
    with pytest.raises(IsADirectoryError):
        box.files.read_raw("/")


@pytest.mark.spec("R3.6")
def test_what_is_written_is_the_guests(box):
    assert box.files.write("/a/b/c.txt", "one\n").path == "/a/b/c.txt"
    again = box.files.write("a/b/c.txt", "two")
    assert again.error == "Cannot write to a/b/c.txt because it already exists."
    cell = "open('/app/a/b/c.txt', 'a').write('more'); open('a/b/new', 'w').close()\n"
    cell += "import os; os.rename('a/b/new', 'a/x'); os.remove('a/x'); open('a/b/c.txt').read()"
    assert box.execute(cell).value == "one\nmore"


@pytest.mark.spec("R3.7")
def test_edit(box):
    box.files.write("a.py", "x = 1\ny = 1\n")
    assert box.files.edit("a.py", "x = 1", "x = '$1\\1'").occurrences == 1
    assert "appears multiple times" in box.files.edit("a.py", "=", "==").error
    assert box.files.edit("a.py", "=", "==", replace_all=True).occurrences == 2
    assert box.execute("open('a.py').read()").value == "x == '$1\\1'\ny == 1\n"
    assert box.files.edit("a.py", "zzz", "").error == "Error: String not found in file: 'zzz'"
    assert box.files.edit("no", "a", "b").error == "Error: File 'no' not found"


@pytest.mark.spec("R3.8", "R3.9")
def test_grep_and_glob(box):
    for name in ("a.py", "sub/b.py", "sub/c.txt", ".hidden.py"):
        box.files.write(name, f"# {name}\nneedle (.*)\n")
    assert paths(box.files.glob("**/*.py")) == [".hidden.py", "a.py", "sub/b.py"]
    assert paths(box.files.glob("*.py", "/app/sub")) == ["b.py"]
    found = box.files.grep("needle (.*)", glob="*.py")
    assert [(one.path, one.line) for one in found] == [
        (".hidden.py", 2), ("a.py", 2), ("sub/b.py", 2),
    ]  # fmt: skip
    assert found[0].text == "needle (.*)"
    assert not found.truncated
    assert box.files.grep("needle", "sub", max_results=1).truncated
    assert [one.path for one in box.files.grep("^# sub/[bc]", regex=True)] == [
        "sub/b.py",
        "sub/c.txt",
    ]
    with pytest.raises(atoll.ConfigError, match="empty"):
        box.files.grep("")
    with pytest.raises(atoll.ConfigError, match="path must be a str"):
        box.files.read(None)
    with pytest.raises(atoll.ConfigError, match="from 0 on"):
        box.files.read("a.py", -1)


@pytest.mark.spec("R3.2")
def test_any_name_and_any_bytes_go_up_and_come_down(box):
    data = bytes(range(256)) * 64
    odd = Capability.SUBPROCESS in box.capabilities  # names in WebAssembly are UTF-8
    names = [name for name in NAMES if odd or "\udcff" not in name]
    results = box.files.upload([(name, data + name.encode(errors="replace")) for name in names])
    assert [one.path for one in results] == list(names)
    assert {one.error for one in results} == {None}
    found = box.files.download([*names, "no"])
    assert [one.content for one in found[:-1]] == [
        data + name.encode(errors="replace") for name in names
    ]
    assert (found[-1].content, found[-1].error) == (None, FileError.FILE_NOT_FOUND)
    assert set(paths(box.files.glob("**"))) == {*names, "sub", "sub/folder"}


def test_ten_megabytes_go_up_and_come_down(box):
    data = os.urandom(1 << 20) * 10
    assert box.files.upload([("big", data)])[0].error is None
    assert box.execute("import os; os.stat('big').st_size").value == len(data)
    assert box.files.download(["big"])[0].content == data


def test_each_file_has_its_own_error(box):
    box.execute("import os; os.mkdir('folder'); open('file', 'w').close()")
    found = box.files.download(["folder", "no", "file/x", "\0", "../../etc/passwd", "file"])
    codes = [one.error for one in found]
    assert codes[:2] == ["is_directory", "file_not_found"]
    assert codes[2] in ("invalid_path", "file_not_found")
    assert codes[3:] == ["invalid_path", "invalid_path", None]
    put = box.files.upload(
        [("folder", b""), ("file/x", b""), ("../x", b""), ("/", b""), ("ok", b"1")]
    )
    assert [one.error for one in put] == [
        "is_directory", "invalid_path", "invalid_path", "is_directory", None,
    ]  # fmt: skip


def test_files_are_there_for_the_next_cell_and_not_reported_as_its_own(box):
    box.files.write("data.csv", "a,b\n1,2\n")
    result = box.execute("text = open('data.csv').read(); open('out', 'w').write(text)")
    assert result.files_created == ("out",)
    assert box.files.read("out") == "     1\ta,b\n     2\t1,2"


def test_temporary_folder_of_the_guest_is_in_reach(box):
    box.execute("open('/tmp/note', 'w').write('from the guest')")
    assert "from the guest" in box.files.read("/tmp/note")
    box.files.write("/tmp/back", "from the host")
    assert box.execute("open('/tmp/back').read()").value == "from the host"


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../../etc/passwd", "/proc/self/environ", "/"]
)
def test_no_link_leads_out(box, target):
    made = box.execute(f"import os; os.symlink({target!r}, 'link'); os.path.islink('link')")
    if not made.success:
        assert box.backend == "wasm", made  # which makes no link that leads out
        return
    for seen in (
        box.files.read("link"), box.files.read("link/etc/passwd"), str(box.files.grep("root")),
        str(box.files.download(["link", "link/etc/passwd"])), str(box.files.glob("**")),
        str(box.files.ls("link")),
    ):  # fmt: skip
        assert "root:" not in seen
        assert box.backend == "pyodide" or "bin" not in seen  # where `/` is the guest's own
    box.files.upload([("link", b"mine")])
    assert box.files.download(["link"])[0].content == b"mine"


def test_links_that_stay_inside_are_followed_by_reading(box):
    box.files.write("sub/target", "text")
    made = box.execute("import os; os.symlink('sub/target', 'link'); os.symlink('sub', 'way')")
    assert made.success, made
    assert box.files.read("link") == box.files.read("way/target") == "     1\ttext"
    assert "is a link" in box.files.edit("link", "text", "other").error
    assert "sub/target" in [one.path for one in box.files.grep("text")]


def test_loops_of_links_end(box):
    box.execute("import os; os.symlink('b', 'a'); os.symlink('a', 'b'); os.symlink('.', 'self')")
    assert box.files.download(["a"])[0].error is FileError.INVALID_PATH
    assert len(box.files.glob("**")) == 3


@pytest.mark.needs(Capability.SUBPROCESS)
def test_what_is_no_file_does_not_hold_up_anybody(box):
    box.execute("import os; os.mkfifo('fifo'); import socket; s = socket.socket(socket.AF_UNIX)")
    box.execute("s.bind('sock')")
    assert box.files.download(["sock"])[0].error is not None
    assert box.files.grep("x") == []
    if box.backend != "gvisor":  # there it exists in the guest's kernel alone
        assert box.files.download(["fifo"])[0].error is FileError.INVALID_PATH
        assert "fifo" in paths(box.files.ls())
    assert box.files.upload([("fifo", b"x")])[0].error is None


def test_sparse_files_are_not_read(box):
    made = box.execute("f = open('sparse', 'wb'); f.truncate(100 << 20); f.close()")
    if made.success:
        assert box.files.ls()[0].size == 100 << 20
        assert box.files.grep("x") == []


@pytest.mark.long
def test_folders_without_end_are_cut_in_words(box):
    deep = Capability.SUBPROCESS in box.capabilities and box.backend != "gvisor"
    depth = 5000 if deep else 250
    code = (
        f"import os\nfor n in range({depth}):\n    os.mkdir('d'); os.chdir('d')\nos.chdir('/app')"
    )
    assert not box.execute(code, timeout_ms=300_000).state_lost  # on a busy machine too
    found = box.files.glob("**")
    assert found.truncated
    assert len(found) >= 50
    assert box.files.grep("x").truncated
    assert box.files.write("after", "x").error is None


@pytest.mark.needs(Capability.LIMIT_DISK)
def test_a_full_disk_is_an_error_and_leaves_no_half_file(open_box):
    box = open_box(policy=atoll.ExecutionPolicy(disk_bytes=4 << 20))
    results = box.files.upload([("small", b"x"), ("big", bytes(16 << 20)), ("after", b"x")])
    assert [one.error for one in results] == [None, FileError.NO_SPACE, None]
    assert paths(box.files.ls()) == ["after", "small"]
    assert "no room" in box.files.write("text", "x" * (16 << 20)).error
    assert paths(box.files.ls()) == ["after", "small"]


@pytest.mark.needs(Capability.LIMIT_FILE_SIZE)
def test_a_file_over_its_limit_is_refused(open_box):
    box = open_box(policy=atoll.ExecutionPolicy(file_size_bytes=1000))
    results = box.files.upload([("a", bytes(1000)), ("b", bytes(1001))])
    assert [one.error for one in results] == [None, FileError.TOO_LARGE]


@pytest.mark.needs(Capability.HOST_FOLDER)
def test_a_host_folder_is_the_working_folder(open_box, tmp_path):
    (tmp_path / "given").write_text("here")
    box = open_box(workspace=tmp_path)
    assert box.files.read("given") == "     1\there"
    box.files.write("made/by", "host")
    assert (tmp_path / "made/by").read_text() == "host"
    assert (tmp_path / "made/by").stat().st_uid == tmp_path.stat().st_uid
    assert box.execute("open('made/by', 'a').write('+guest'); open('made/by').read()").value == (
        "host+guest"
    )


@pytest.mark.needs(Capability.HOST_FOLDER)
def test_a_host_folder_that_is_gone_is_told_and_leaks_nothing(open_box, tmp_path):
    (folder := tmp_path / "gone").mkdir()
    box = open_box(workspace=folder)
    before = len(os.listdir("/proc/self/fd"))
    folder.rmdir()
    for _ in range(5):
        with pytest.raises(atoll.SandboxError, match="cannot be opened"):
            box.files.ls()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.needs(Capability.HOST_FOLDER)
def test_mounts_keep_their_rights(open_box, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "data").write_text("read me")
    box = open_box(policy=atoll.ExecutionPolicy(mounts=(Mount(source=tmp_path, target="/app/in"),)))
    assert "read me" in box.files.read("in/data")
    assert box.files.upload([("in/data", b"x")])[0].error is FileError.PERMISSION_DENIED
    assert (tmp_path / "data").read_text() == "read me"


def test_files_of_a_lost_guest_are_not_those_of_the_next(open_box):
    box = open_box(timeout_ms=1500)
    box.files.write("a", "x")
    result = box.execute(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    )
    assert not result.success
    if result.state_lost:
        assert box.files.ls() == []
    box.files.write("b", "y")
    assert box.execute("open('b').read()").value == "y"


def test_a_closed_sandbox_says_so(open_box):
    box = open_box()
    files = box.files
    box.destroy()
    with pytest.raises(atoll.SandboxError):
        files.ls()


@pytest.mark.needs(Capability.FORK)
def test_clones_have_files_of_their_own(box):
    box.files.write("a", "one")
    twin = box.fork()
    try:
        twin.files.edit("a", "one", "two")
        assert ("one" in box.files.read("a"), "two" in twin.files.read("a")) == (True, True)
    finally:
        twin.destroy()
    mark = box.checkpoint()
    box.files.write("b", "later")
    box.rollback(mark)
    assert paths(box.files.ls()) == ["a"]


def test_files_can_be_used_while_a_cell_runs(open_box):
    box = open_box()
    if box.backend == "pyodide":
        pytest.skip("the guest itself does it, when the cell has ended")
    done = []
    cell = "import time\nopen('begun', 'w').close()\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)"
    thread = threading.Thread(target=lambda: done.append(box.execute(cell)))
    thread.start()
    end = time.monotonic() + 15
    while not paths(box.files.ls()) and time.monotonic() < end:
        time.sleep(0.01)
    assert paths(box.files.ls()) == ["begun"]
    box.files.write("go", "")
    thread.join()
    assert done[0].success, done[0]


async def test_async_files_do_the_same(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        assert isinstance(box.files, Files)
        await box.files.write("a", "x")
        assert paths(await box.files.ls()) == ["a"]
        assert (await box.files.download(["a"]))[0].content == b"x"
        many = await asyncio.gather(*(box.files.write(str(n), "x") for n in range(20)))
        assert [one.error for one in many] == [None] * 20


async def test_a_cancelled_operation_leaks_no_descriptor(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        await box.files.write("a", "x" * 1000)
        await box.execute("1")  # the guest's counters are opened here, and stay open
        before = len(os.listdir("/proc/self/fd"))
        for delay in (0, 0.0001, 0.001):
            for _ in range(10):
                with pytest.raises((TimeoutError, asyncio.CancelledError)):
                    async with asyncio.timeout(delay):
                        await box.files.read("a")
                        await asyncio.sleep(1)
        for _ in range(100):
            if len(os.listdir("/proc/self/fd")) <= before:
                break
            await asyncio.sleep(0.05)
        assert len(os.listdir("/proc/self/fd")) <= before
        assert "x" in await box.files.read("a")


@pytest.mark.needs(Capability.SHELL, Capability.HOST_FOLDER)
def test_files_are_reached_by_absolute_paths_as_far_as_the_guest_may(open_box, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "data.txt").write_text("mounted")
    mount = Mount(source=tmp_path, target="/data", writable=False)
    box = open_box(policy={"mounts": (mount,)})
    box.shell("mkfifo /tmp/pipe; ln -s /data/data.txt link; ln -s /etc out")
    paths = [
        "/data/data.txt",
        "/etc/passwd",
        "link",
        "/etc",
        "/none",
        "/tmp/pipe",
        "/root/x",
        "/a\0",
    ]
    found = box.files.download(paths, absolute=True)
    assert [one.path for one in found] == paths
    assert found[0].content == b"mounted"
    assert b"guest" in found[1].content
    # A pipe that is made in gVisor is not seen from outside.
    pipe = "file_not_found" if box.backend == "gvisor" else "invalid_path"
    codes = ["invalid_path", "is_directory", "file_not_found", pipe]
    assert [one.error for one in found[2:6]] == codes
    assert found[6].error in ("file_not_found", "permission_denied")
    assert found[7].error == "invalid_path"
    through = box.files.download(["/app/link"], absolute=True)
    assert through[0].content == b"mounted"
    sent = [
        ("/dev/shm/a b'c.bin", b"\0\xff"),
        ("/app/sub/x", b"1"),
        ("/data/no", b""),
        ("/etc/passwd", b""),
    ]
    assert [one.error for one in box.files.upload(sent, absolute=True)] == [
        None, None, "permission_denied", "permission_denied",
    ]  # fmt: skip
    code = "open('/dev/shm/a b\\'c.bin', 'rb').read(), open('sub/x').read()"
    assert box.execute(code).value == (b"\0\xff", "1")
    assert not [one for one in box.shell("ls -A /tmp").output.split() if one.startswith(".atoll")]


def test_absolute_paths_need_a_shell(backend, open_box):
    if Capability.SHELL in registry.load(backend).capabilities:
        pytest.skip(f"backend {backend} has a shell")
    with pytest.raises(atoll.UnsupportedError, match="reach files outside of the working folder"):
        open_box().files.download(["/etc/passwd"], absolute=True)

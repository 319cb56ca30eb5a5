"""A host's folder as working folder: what the guest leaves there, and that it stays in there.

Each attack runs as the user of the tests, and as an ordinary user too where that is root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import pytest
from ordinary_user import USER, python_for_user, run_as_user

import atoll
from atoll.launch import interpreter

SECRET = "a secret of the host's"
RUN = """
import json, sys
import atoll
folder, code = sys.argv[1:]
with atoll.create_sandbox(workspace=folder, timeout_ms=30_000) as box:
    result = box.execute(code)
print(json.dumps({"stdout": result.stdout, "error": result.error, "files": result.files_created}))
"""


class Folder:
    """A working folder, in a parent with a secret, and the user who uses it."""

    def __init__(self, parent: Path, uid: int) -> None:
        self.uid = uid
        self.parent, self.path = parent, parent / "work"
        self.path.mkdir()
        self.secret = parent / "secret.txt"
        self.secret.write_text(SECRET)
        for one in (parent, self.path, self.secret):
            os.chown(one, uid, uid)

    def attack(self, code: str) -> dict[str, Any]:
        """Run a cell with the folder as /app, as the folder's user."""
        if self.uid == os.getuid():
            with atoll.create_sandbox(workspace=self.path, timeout_ms=30_000) as box:
                result = box.execute(code)
            found = {"stdout": result.stdout, "error": result.error}
            return found | {"files": list(result.files_created)}
        done = run_as_user(python_for_user(), "-c", RUN, str(self.path), code, timeout=100)
        assert done.returncode == 0, done.stderr[-2000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def left(self) -> dict[str, os.stat_result]:
        """All that lies in the folder now, by path."""
        return {str(path.relative_to(self.path)): path.lstat() for path in self.path.rglob("*")}


@pytest.fixture(params=["as we are", "as ordinary user"])
def folder(request):
    ordinary = request.param == "as ordinary user"
    if ordinary and os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    parent = Path(tempfile.mkdtemp(prefix="host-folder-"))  # a place that others may enter
    parent.chmod(0o755)
    yield Folder(parent, USER if ordinary else os.getuid())
    shutil.rmtree(parent)


@pytest.mark.parametrize(
    "attack",
    [
        "open('a', 'w').close(); os.chmod('a', 0o4755)",
        "open('a', 'w').close(); os.chmod('a', 0o2755)",
        "fd = os.open('a', os.O_CREAT | os.O_WRONLY, 0o6755); os.fchmod(fd, 0o6755)",
        "os.umask(0); os.close(os.open('a', os.O_CREAT | os.O_WRONLY, 0o6755))",
        "os.umask(0); os.mkdir('a', 0o2777)",
        "os.mkdir('a'); os.chmod('a', 0o2777)",
        "os.umask(0); os.mknod('a', 0o106755)",
        "os.umask(0); os.mkfifo('a', 0o6755)",
        "os.chmod('a', 0o4755, dir_fd=os.open('.', os.O_RDONLY)) if open('a', 'w') else 0",
        "subprocess.run('cp /bin/sh a; chmod u+s a; chmod 6755 a; chmod g+s .', shell=True)",
        "subprocess.run(['install', '-m', '4755', '/bin/sh', 'a'])",
        "subprocess.run(['mkdir', '-m', '2777', 'a'])",
        "[subprocess.run(['cp', '-p', f'/usr/bin/{name}', name]) for name in ('passwd', 'su')]",
        "shutil.copy('/usr/bin/passwd', 'a') if os.path.exists('/usr/bin/passwd') else 0",
        "make_tar(); tarfile.open('x.tar').extractall('.', **trusting)",
        "make_tar(); subprocess.run(['tar', '-xpf', 'x.tar'])",
        "os.chown('.', 0, 0)",
        "ctypes.CDLL(None).syscall(437, -100, b'a', struct.pack('QQQ', 0o101, 0o6755, 0), 24)",
    ],
)  # fmt: skip
def test_no_set_id_bit_gets_on_a_file(folder, attack):
    lines = [
        "import os, subprocess, shutil, tarfile, io, ctypes, struct",
        "trusting = {'filter': 'fully_trusted'} if hasattr(tarfile, 'data_filter') else {}",
        "def make_tar():",
        "    info = tarfile.TarInfo('a'); info.mode = 0o6755; info.size = 1",
        "    with tarfile.open('x.tar', 'w') as tar: tar.addfile(info, io.BytesIO(b'x'))",
        "try:",
        f"    {attack}",
        "finally:",
        "    print('ran')",
    ]
    assert folder.attack("\n".join(lines))["stdout"].endswith("ran\n")
    for path, info in [*folder.left().items(), (".", folder.path.stat())]:
        assert not info.st_mode & (stat.S_ISUID | stat.S_ISGID), f"{path}: {info.st_mode:o}"


def test_no_device_is_left(folder):
    found = folder.attack(
        "import os, stat\n"
        "for name, kind in (('b', stat.S_IFBLK), ('c', stat.S_IFCHR)):\n"
        "    try: os.mknod(name, kind | 0o666, os.makedev(1, 3))\n"
        "    except OSError as exc: print(exc.errno)"
    )
    assert found["stdout"] == "1\n1\n"
    assert folder.left() == {}


def test_what_the_guest_creates_belongs_to_the_folder_s_owner(folder):
    code = (
        "import os, subprocess\n"
        "os.mkdir('d'); open('d/f', 'w').write('x'); os.symlink('f', 'd/l'); os.mkfifo('p')\n"
        "subprocess.run(['touch', 'd/t'])"
    )
    assert folder.attack(code)["error"] is None
    left = folder.left()
    assert set(left) == {"d", "d/f", "d/l", "d/t", "p"}
    owner = folder.path.stat()
    assert {(one.st_uid, one.st_gid) for one in left.values()} == {(owner.st_uid, owner.st_gid)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of others")
@pytest.mark.parametrize(("uid", "gid"), [(USER, USER), (USER, 100), (0, 50)])
def test_a_folder_of_another_user_and_group_works_and_stays_theirs(tmp_path, uid, gid):
    (tmp_path / "given.txt").write_text("old")
    for one in (tmp_path, tmp_path / "given.txt"):
        os.chown(one, uid, gid)
    with atoll.create_sandbox(workspace=tmp_path) as box:
        code = "open('given.txt', 'a').write(' and new'); open('made.txt', 'w').write('made')"
        assert box.execute(code).error is None
        seen = box.execute("import os; [os.stat(one) for one in ('.', 'given.txt', 'made.txt')]\n")
        assert seen.error is None
        owners = box.execute(
            "{(i.st_uid, i.st_gid) for i in map(os.stat, ('.', 'given.txt', 'made.txt'))}"
        ).value
        assert owners == {(1000, 1000)}
    assert (tmp_path / "given.txt").read_text() == "old and new"
    for name in ("given.txt", "made.txt"):
        info = (tmp_path / name).stat()
        assert (info.st_uid, info.st_gid) == (uid, gid)


def test_the_guest_gives_its_files_to_nobody_else(folder):
    code = (
        "import os\nopen('f', 'w').close()\n"
        "for uid in (0, 1, 65534, 2_000_000_000):\n"
        "    try: os.chown('f', uid, uid); print('done')\n"
        "    except OSError: pass"
    )
    assert folder.attack(code)["stdout"] == ""
    assert folder.left()["f"].st_uid == folder.uid


def test_a_link_to_a_host_file_is_not_followed_for_the_result(folder):
    code = (
        "import os\nopen('real.txt', 'w').write('x')\n"
        f"os.symlink({str(folder.secret)!r}, 'link.txt'); os.symlink('/etc/passwd', 'p')\n"
        f"os.symlink({str(folder.parent)!r}, 'folder'); os.symlink('..', 'up')"
    )
    found = folder.attack(code)
    assert found["error"] is None
    assert found["files"] == ["real.txt"]


def test_a_link_that_lies_there_already_is_not_followed(folder):
    (folder.path / "link.txt").symlink_to(folder.secret)
    (folder.path / "up").symlink_to(folder.parent)
    code = (
        "import os\n"
        "for path in ('link.txt', 'up/secret.txt', 'up/work'):\n"
        "    try: open(path).read(); print('read', path)\n"
        "    except OSError as exc: print(type(exc).__name__)\n"
        "open('new.txt', 'w').close()"
    )
    found = folder.attack(code)
    assert found["stdout"] == "FileNotFoundError\n" * 3
    assert found["files"] == ["new.txt"]


@pytest.mark.parametrize(
    "way",
    [
        "/app/../secret.txt", "/app/../usr/../secret.txt", "../secret.txt",
        "/mnt/data/../secret.txt", "/proc/self/cwd/../secret.txt", "/proc/self/root/../secret.txt",
        "/proc/thread-self/cwd/../secret.txt", "{parent}/secret.txt",
        "/proc/self/root{parent}/secret.txt", "/proc/1/root{parent}/secret.txt",
        "/proc/1/cwd/{parent}/secret.txt", "/proc/self/fd/3/../secret.txt",
    ],
)  # fmt: skip
def test_no_path_leads_to_the_parent_folder(folder, way):
    path = way.format(parent=folder.parent)
    code = f"""
import os
for base in ('/', '/app'):
    os.chdir(base)
    for use in (lambda p: open(p).read(), lambda p: os.listdir(os.path.dirname(p))):
        try:
            print(use({path!r}))
        except OSError:
            pass
"""
    found = folder.attack(code)
    assert found["error"] is None
    assert SECRET not in found["stdout"]
    assert "secret.txt" not in found["stdout"]


def test_no_descriptor_leads_to_the_parent_folder(folder):
    code = """
import os
here = os.open('/app', os.O_RDONLY | os.O_DIRECTORY)
for _ in range(20):
    here = os.open('..', os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
print(sorted(os.listdir(here)) == sorted(os.listdir('/')))
os.mkdir('/app/deep'); os.chdir('/app/deep')
inside = os.open('.', os.O_RDONLY)
os.rename('/app/deep', '/app/moved'); os.chdir('/')
print(os.path.samefile(os.open('..', os.O_RDONLY, dir_fd=inside), '/app'))
"""
    found = folder.attack(code)
    assert (found["stdout"], found["error"]) == ("True\nTrue\n", None)


def test_a_folder_moved_away_by_the_host_does_not_take_the_guest_along(tmp_path):
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text(SECRET)
    with atoll.create_sandbox(workspace=tmp_path / "work") as box:
        box.execute("import os; inside = os.open('sub', os.O_RDONLY); os.chdir('sub')")
        (tmp_path / "work" / "sub").rename(tmp_path / "sub")
        for way in ("..", "/proc/self/cwd/..", f"/proc/self/fd/{box.get_variable('inside')}/.."):
            assert box.execute(f"os.listdir({way!r})").error_type == "FileNotFoundError"
            opened = box.execute(f"open({way!r} + '/secret.txt')")
            assert opened.error_type == "FileNotFoundError"


def test_hard_links_reach_nothing_outside(folder):
    code = f"""
import os
outside = ['/etc/passwd', '/usr/bin/env', '/proc/self/environ', '/opt/atoll/guest/shared/rpc.py']
for source in [{str(folder.secret)!r}, *outside]:
    for target in ('/app/hard', '/tmp/hard'):
        try:
            os.link(source, target)
            print('linked', source, target)
        except OSError:
            pass
"""
    assert folder.attack(code)["stdout"] == ""
    assert folder.left() == {}


@pytest.mark.parametrize("where", ["/app", "/tmp", "/home/guest"])
def test_nothing_is_mounted_or_renamed_across(folder, where):
    code = (
        "import os\nopen('/app/f', 'w').write('x')\n"
        f"try: os.rename('/app/f', {where!r} + '/../f'); print('moved')\n"
        "except OSError: pass"
    )
    assert folder.attack(code)["stdout"] == ""
    assert set(folder.left()) == {"f"}


def test_a_linked_python_shows_nothing_of_the_folder_it_lies_in(tmp_path):
    (tmp_path / "secret.txt").write_text(SECRET)
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    with atoll.create_sandbox(python=str(link)) as box:
        assert box.execute("6 * 7").value == 42
        _require_hidden(box, tmp_path)


def test_a_chain_of_links_shows_nothing_of_its_folders(tmp_path):
    real = os.path.realpath(sys.executable)
    steps = [tmp_path / name for name in ("one", "two", "three")]
    for folder in steps:
        folder.mkdir()
        (folder / "secret.txt").write_text(SECRET)
    (steps[2] / "python3").symlink_to(real)
    (steps[1] / "python3").symlink_to("../three/python3")
    (steps[0] / "python3").symlink_to(steps[1] / "python3")
    with atoll.create_sandbox(python=str(steps[0] / "python3")) as box:
        assert box.execute("6 * 7").value == 42
        for folder in steps:
            _require_hidden(box, folder)


def test_a_venv_shows_nothing_of_the_folder_it_lies_in(tmp_path):
    (tmp_path / "secret.txt").write_text(SECRET)
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    with atoll.create_sandbox(python=str(tmp_path / "venv" / "bin" / "python")) as box:
        assert box.execute("import sys; sys.prefix").value == str(tmp_path / "venv")
        _require_hidden(box, tmp_path)


def test_a_python_whose_files_are_the_home_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    venv.create(tmp_path, with_pip=False, symlinks=True)
    wanted = "which holds your home folder too. Make a venv and give its python."
    with pytest.raises(atoll.BackendUnavailableError, match=re.escape(wanted)):
        atoll.create_sandbox(python=str(tmp_path / "bin" / "python"))


def test_a_prefix_above_the_home_folder_is_refused(tmp_path, monkeypatch):
    home = tmp_path / "home" / "me"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for prefix in (home, home.parent, tmp_path, Path("/")):
        with pytest.raises(atoll.BackendUnavailableError, match="holds your home folder"):
            interpreter._outermost({str(prefix)})
    (tmp_path / "link").symlink_to(home)
    with pytest.raises(atoll.BackendUnavailableError, match="holds your home folder"):
        interpreter._outermost({str(tmp_path / "link")})
    assert interpreter._outermost({str(home / "venv"), str(home / "venv" / "x"), "/usr"}) == (
        str(home / "venv"),
    )


def _require_hidden(box: atoll.SyncSandbox, folder: Path) -> None:
    seen = box.execute(f"import os; os.listdir({str(folder)!r})")
    hidden = seen.error_type in ("FileNotFoundError", "PermissionError")
    assert hidden or "secret.txt" not in seen.value
    opened = box.execute(f"open({str(folder / 'secret.txt')!r}).read()")
    assert opened.error_type == "FileNotFoundError"

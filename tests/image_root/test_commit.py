"""A session committed as an image: what its layer has, and what a hostile session cannot put there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ordinary_user import USER, python_for_user, run_as_user

import atoll
from atoll.errors import ConfigError, ImageError, UnsupportedError
from atoll.images import get_image, store

MIB = 1 << 20
CHANGES = """
import os, shutil
os.remove('/etc/os-release')
open('/srv/new', 'w').write('data')
os.link('/srv/new', '/srv/hard')
os.symlink('/etc/shadow', '/srv/link')
os.makedirs('/opt/tool/deep')
open('/opt/tool/deep/file', 'w').write('tool')
shutil.rmtree('/var/data')
os.mkdir('/var/data')
open('/var/data/fresh', 'w').write('fresh')
open('notes', 'w').write('in app')
open('/home/guest/.config', 'w').write('at home')
open('/tmp/gone', 'w').write('temporary')
rows = [1, 2]
"""
LOOK = """
import os
def text(path):
    return open(path).read() if os.path.exists(path) else None
[text('/etc/os-release'), text('/srv/new'), os.stat('/srv/new').st_nlink, os.readlink('/srv/link'),
 text('/opt/tool/deep/file'), os.listdir('/var/data'), text('notes'), text('/home/guest/.config'),
 os.listdir('/tmp'), sorted(os.listdir('/mnt')), sorted(os.listdir('/opt'))]
"""
SEEN = [
    *(None, "data", 2, "/etc/shadow", "tool", ["fresh"], "in app", "at home", []),
    *(["data"], ["atoll", "tool"]),
]


def open_box(image: str, backend: str = "native", **options: Any) -> Any:
    options = {"writable_root": True, **options}
    return atoll.create_sandbox(backend=backend, image=image, **options)


def names_in(reference: str) -> set[str]:
    """Return the paths in the top layer of an image."""
    held = get_image(reference)
    top = held.image.layers[-1]
    held.close()
    found = (
        Path(folder, name) for folder, folders, files in os.walk(top) for name in folders + files
    )
    return {str(path.relative_to(top)) for path in found}


def test_the_command_line_keeps_a_program_that_ends_well(image: str) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "atoll", "run", "--backend", "native", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    writable = ("--image", image, "--writable-root", "--commit")
    done = run(*writable, "team/typed:1", "-c", "open('/srv/kept', 'w').write('kept')")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("atoll: team/typed:1 is sha256:")
    again = run("--image", "team/typed:1", "-c", "print(open('/srv/kept').read())")
    assert (again.returncode, again.stdout) == (0, "kept\n"), again.stderr
    failed = run(*writable, "team/typed:2", "-c", "raise SystemExit(3)")
    assert failed.returncode == 3
    assert "team/typed:2 was not made: the program failed" in failed.stderr
    assert run("--commit", "team/typed:3", "-c", "1").returncode == 2


@pytest.mark.parametrize("backend", ["native", "daemon", "gvisor"], indirect=True)
def test_a_session_goes_on_from_what_was_committed(image: str, backend: str) -> None:
    name = f"team/{backend}:with-data"
    with open_box(image, backend) as box:
        assert box.execute(CHANGES).error is None
        made = box.commit(name)
        state = box.save()
        assert box.execute("rows").value == [1, 2]
    assert (made.image, str(made), dict(made.left_out)) == (name, name, {})
    assert made.layer_bytes == sum(map(len, ("data", "tool", "fresh", "in app", "at home")))
    with open_box(made.image, backend, state=state, writable_root=False) as box:
        result = box.execute(LOOK)
        assert (result.value, result.image) == (SEEN, made.digest)
        assert box.execute("rows").value == [1, 2]
    atoll_names = {path for path in names_in(name) if not path.startswith(("app", "home"))}
    assert {"dev", "proc", "tmp", ".box", "mnt/data", "etc/passwd"}.isdisjoint(atoll_names)


def test_an_unchanged_session_makes_an_empty_layer(image: str) -> None:
    with open_box(image) as box:
        made = box.commit("team/unchanged:1")
    assert (made.files, made.layer_bytes) == (0, 0)
    assert names_in("team/unchanged:1") == set()


@pytest.mark.parametrize("backend", ["daemon"], indirect=True)
def test_a_warm_session_commits_its_own_folders(image: str, backend: str) -> None:
    with open_box(image, backend, writable_root=False) as box:
        assert box.execute("open('kept', 'w').write('x'); 1").cold_start is None
        assert box.commit("team/warm:1").files == 1
    with open_box("team/warm:1", "native") as box:
        assert box.execute("open('kept').read()").value == "x"


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_layout_is_read_by_other_tools(image: str, tmp_path: Path, compression: str) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("skopeo is not installed: apt-get install skopeo")
    target = f"oci:{tmp_path}/out:second"
    with open_box(image) as box:
        box.commit(f"oci:{tmp_path}/out:first", compression=compression)
        assert box.shell("mkdir /srv/more; touch /srv/more/x").exit_code == 0
        made = box.commit(target, compression=compression)
    said = subprocess.run(
        [skopeo, "inspect", "--raw", target], capture_output=True, text=True, check=True
    )
    kinds = [layer["mediaType"] for layer in json.loads(said.stdout)["layers"]]
    assert kinds[-1] == f"application/vnd.oci.image.layer.v1.tar+{compression}"
    with open_box(made.image) as box:
        assert box.shell("ls /srv/more").output == "x\n"
    index = json.loads((tmp_path / "out/index.json").read_text())
    assert len(index["manifests"]) == 2


HOSTILE = r"""
import os, socket, stat
os.chdir('/srv')
os.symlink('/', 'root')
os.symlink('../../../../../../etc/passwd', 'up')
os.mkfifo('fifo')
left = socket.socket(socket.AF_UNIX); left.bind('socket')
for name in (b'.wh.etc', b'.wh..wh..opq', b'\xff\xfe name', b'new\nline'):
    open(name, 'w').write('x')
for count in range(300):
    os.mkdir('deep'); os.chdir('deep')
open('bottom', 'w').write('deep')
os.chdir('/srv')
os.mkdir('closed'); open('closed/inner', 'w').write('closed'); os.mkdir('closed/more')
open('closed/more/x', 'w').write('more')
os.chmod('closed/more', 0); os.chmod('closed/inner', 0); os.chmod('closed', 0)
open('setuid', 'w').close(); mode = 0o755
try:
    os.chmod('setuid', 0o4755)
except PermissionError:
    pass
os.chdir('/app')
try:
    os.mknod('whiteout', stat.S_IFCHR | 0o600, 0)
except OSError as exc:
    open('refused', 'w').write(str(exc))
os.symlink('/etc', 'etc')
"""


def test_a_hostile_session_reaches_nothing_outside(image: str) -> None:
    with open_box(image) as box:
        assert box.execute(HOSTILE).error is None
        made = box.commit("team/hostile:1")
        assert box.shell("ls -ld /srv/closed").output.startswith("d---------")
    assert made.left_out["names with .wh."] == 2
    assert made.left_out["devices and sockets"] >= 1
    names = names_in("team/hostile:1")
    assert {"srv/root", "srv/up", "srv/fifo", "srv/closed/more/x"} <= names
    assert f"srv/{'deep/' * 300}bottom" in names
    assert not any("wh." in name for name in names)
    held = get_image("team/hostile:1")
    top = held.image.layers[-1]
    assert os.readlink(top / "srv/up") == "../../../../../../etc/passwd"
    assert (top / "srv/closed/inner").read_text() == "closed"
    assert not any(
        path.lstat().st_mode & 0o6000 for path in (top / "srv").iterdir() if path.is_file()
    )
    held.close()
    with open_box("team/hostile:1") as box:
        assert box.execute("open('/srv/closed/inner').read(), open('/etc/passwd').read()[:4]").value
        assert box.execute("import os; os.path.islink('/app/etc')").value is True


def test_holes_count_before_they_are_read(image: str) -> None:
    policy = {"disk_bytes": 32 * MIB, "file_size_bytes": None}
    with open_box(image, policy=policy) as box:
        assert box.execute("open('/srv/hole', 'wb').truncate(1 << 40)").error is None
        with pytest.raises(ImageError, match="more than 33,554,432 bytes; holes"):
            box.commit("team/hole:1")
        assert box.execute("1 + 1").value == 2
    assert store.named("docker.io/team/hole:1") is None


def test_a_long_path_is_refused_in_words(image: str) -> None:
    code = (
        "import os; os.chdir('/srv')\nfor _ in range(40): os.mkdir('d' * 200); os.chdir('d' * 200)"
    )
    with open_box(image) as box:
        assert box.execute(code).error is None
        with pytest.raises(ImageError, match="a path has more than"):
            box.commit("team/long:1")


def test_a_full_store_removes_no_other_image(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_box(image) as box:
        monkeypatch.setenv("ATOLL_IMAGES_MB", "1")
        with pytest.raises(ImageError, match="the store is full"):
            box.commit("team/full:1")
        monkeypatch.delenv("ATOLL_IMAGES_MB")
    held = get_image(image, pull=False)
    held.close()


def test_files_of_the_caller_are_not_committed(image: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mine").write_text("the caller's")
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen/mine").write_text("the caller's")
    mounts = [{"source": tmp_path / "seen", "target": "/srv/seen", "writable": True}]
    options = {"workspace": tmp_path / "work", "policy": {"mounts": mounts}}
    with open_box(image, **options) as box:
        assert box.shell("cat /srv/seen/mine mine; touch /srv/own").exit_code == 0
        box.commit("team/mounts:1")
    assert names_in("team/mounts:1") == {"srv", "srv/own"} or names_in("team/mounts:1") == {
        "srv/own"
    }


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("team/env@sha256:" + "0" * 64, {}, "is not a name for an image"),
        ("Not A Name", {}, "is not an image"),
        ("oci:/tmp/x", {"push": True}, "the target is a folder"),
        ("team/env:1", {"compression": "xz"}, "compression is one of gzip, zstd"),
        (3, {}, "image must be a reference"),
    ],
)
def test_targets_are_checked(image: str, target: Any, options: Any, words: str) -> None:
    with open_box(image) as box, pytest.raises(ConfigError, match=words):
        box.commit(target, **options)


def test_a_session_without_an_image_says_what_to_do() -> None:
    with (
        atoll.create_sandbox(backend="native") as box,
        pytest.raises(ConfigError, match="this session has none: open it with image="),
    ):
        box.commit("team/env:1")
    with (
        atoll.create_sandbox(backend="restricted") as box,
        pytest.raises(UnsupportedError, match="commit a session as an image"),
    ):
        box.commit("team/env:1")


AS_USER = f"""
import sys, atoll
options = {{"backend": "native", "writable_root": True}}
with atoll.create_sandbox(image=sys.argv[1], **options) as box:
    assert box.execute({CHANGES!r}).error is None
    assert box.execute({HOSTILE!r}).error is None
    made = box.commit("team/user:1")
with atoll.create_sandbox(image="team/user:1", **options) as box:
    value = box.execute({LOOK!r}).value
    print(value == {SEEN!r}, box.execute("open('/srv/closed/more/x').read()").value)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="all tests run as an ordinary user already")
def test_an_ordinary_user_commits_files_that_are_closed_to_their_owner(image: str) -> None:
    shared = Path(tempfile.mkdtemp(prefix="atoll-user-"))
    try:
        shared.chmod(0o755)
        (shared / "cache").mkdir()
        os.chown(shared / "cache", USER, USER)
        shutil.copytree(image.removeprefix("oci:"), shared / "image")
        command = (python_for_user(), "-c", AS_USER, f"oci:{shared}/image")
        done = run_as_user(*command, ATOLL_CACHE=str(shared / "cache"), timeout=120)
        assert (done.stdout, done.stderr) == ("True more\n", "")
    finally:
        shutil.rmtree(shared)

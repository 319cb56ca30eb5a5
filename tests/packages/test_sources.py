"""Packages that are source only: built if asked, in a jail without network; their code stays there."""

from __future__ import annotations

import fcntl
import os

import pytest

from atoll.errors import PackageError
from atoll.launch import interpreter
from atoll.packages import build, jailed, written
from atoll.packages.environment import ensure

ATTACK = """
import os, socket
found = []
def attempt(what, function):
    try:
        function()
        found.append(what)
    except OSError:
        pass
attempt("network", lambda: socket.create_connection(("127.0.0.1", {port}), 1))
attempt("wrote", lambda: open({place!r}, "w").write("x"))
attempt("read", lambda: open("/etc/shadow").read())
attempt("killed", lambda: os.kill({pid}, 9))
found.append(os.getcwd() != "/" and os.getuid())
"""


def test_a_source_is_built_only_if_asked_and_reaches_nothing(cache, index, target, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        place, port = str(tmp_path / "escaped"), server.getsockname()[1]
        index.source("tiny", backend=ATTACK.format(port=port, place=place, pid=os.getpid()))
        index.wheel("user", needs=("tiny>=1",))
        with pytest.raises(PackageError) as caught:
            ensure(["user"], target)
        assert caught.value.package == "tiny"
        hold = ensure(["user"], target, allow_source=True)
        with pytest.raises(TimeoutError):
            server.accept()
    hold.close()
    text = (hold.environment.folder / "site" / "tiny" / "__init__.py").read_text()
    assert text == "built = [1000]", text  # the guest's user, and nothing that it tried
    assert not os.path.exists(place)
    assert [(one.name, one.from_source) for one in hold.environment.packages] == [
        ("tiny", True),
        ("user", False),
    ]


LEFT = """
import fcntl, os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        lock = os.open("alive", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(write, b"x")
        for fd in range(64):
            if fd != lock:
                try:
                    os.close(fd)
                except OSError:
                    pass
        while True:
            time.sleep(1)
    os._exit(0)
os.wait()
os.read(read, 1)
print("built")
"""


def test_no_process_of_a_build_is_left_when_its_folder_is_read(tmp_path):
    program, folder = tmp_path / "left.py", tmp_path / "out"
    program.write_text(LEFT)
    folder.mkdir()
    said = jailed.run(
        interpreter.resolve(None),
        ("left.py",),
        seen={"left.py": str(program)},
        folder=folder,
        seconds=60,
    )
    assert "built" in said.stdout + said.stderr, said
    with (folder / "alive").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError if it lives


@pytest.mark.parametrize("made", ["link", "fifo", "folder", "link inside"])
def test_a_file_that_a_build_wrote_is_opened_without_following_links(tmp_path, made):
    secret, folder = tmp_path / "secret", tmp_path / "out"
    secret.write_text("secret")
    folder.mkdir()
    name = "tiny-1.0-py3-none-any.whl"
    if made == "link":
        (folder / name).symlink_to(secret)
    elif made == "link inside":
        (folder / "other").write_text("x")
        (folder / name).symlink_to("other")
    elif made == "fifo":
        os.mkfifo(folder / name)
    else:
        (folder / name).mkdir()
    with pytest.raises(PackageError):
        written.copy(folder, name, tmp_path / "copy", 1 << 20)
    with pytest.raises(PackageError):
        build.describe([folder / name])
    assert not (tmp_path / "copy").exists()


def test_a_folder_is_made_read_only_by_descriptors(tmp_path, monkeypatch):
    """The file that is checked is the file that is changed, though its name is moved meanwhile."""
    secret, folder = tmp_path / "secret", tmp_path / "out"
    secret.write_text("secret")
    secret.chmod(0o400)
    folder.mkdir()
    (folder / "file").write_text("x")
    chmod = os.chmod

    def swap_first(path, mode, **options):
        monkeypatch.setattr(os, "chmod", chmod)
        (folder / "file").unlink()
        (folder / "file").symlink_to(secret)
        chmod(path, mode, **options)

    monkeypatch.setattr(os, "chmod", swap_first)
    build.close(folder)
    assert secret.stat().st_mode & 0o777 == 0o400


@pytest.mark.long
def test_a_source_that_does_not_build_says_why(cache, index, target):
    index.source("tiny", backend="raise ValueError('no compiler here')\n")
    with pytest.raises(
        PackageError, match=r"'tiny' cannot be installed: its source does not build: .*no compiler"
    ):
        ensure(["tiny"], target, allow_source=True)

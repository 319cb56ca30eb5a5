"""Copying what a guest has made: as it is, without following anything, with two descriptors."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.jail.walls.copytree import copy_tree


@pytest.fixture
def pair(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    return source, target


def test_content_modes_and_times_are_kept(pair):
    source, target = pair
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "file").write_bytes(os.urandom(3_000_000))
    (source / "a" / "run").write_text("x")
    (source / "a" / "run").chmod(0o751)
    (source / "a").chmod(0o570)
    os.utime(source / "a" / "run", ns=(1_000_000_007, 2_000_000_009))
    copy_tree(str(source), str(target))
    assert (target / "a/b/file").read_bytes() == (source / "a/b/file").read_bytes()
    assert stat.S_IMODE((target / "a/run").stat().st_mode) == 0o751
    assert stat.S_IMODE((target / "a").stat().st_mode) == 0o570
    assert (target / "a/run").stat().st_mtime_ns == 2_000_000_009


def test_links_are_copied_and_not_followed(pair, tmp_path):
    source, target = pair
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("s")
    (source / "folder").symlink_to(tmp_path / "outside")
    (source / "file").symlink_to("../outside/secret")
    (source / "nowhere").symlink_to("nothing")
    copy_tree(str(source), str(target))
    assert {path.name: str(path.readlink()) for path in target.iterdir()} == {
        "folder": str(tmp_path / "outside"),
        "file": "../outside/secret",
        "nowhere": "nothing",
    }


def test_the_source_itself_may_not_be_a_link(pair):
    source, target = pair
    (source.parent / "link").symlink_to(source)
    with pytest.raises(OSError):
        copy_tree(str(source.parent / "link"), str(target))


def test_holes_stay_holes(pair):
    source, target = pair
    with (source / "sparse").open("wb") as file:
        file.write(b"start")
        file.seek(50 << 20)
        file.write(b"middle")
        file.truncate(100 << 20)
    copy_tree(str(source), str(target))
    copied = target / "sparse"
    assert copied.stat().st_size == 100 << 20
    assert copied.stat().st_blocks * 512 < 1 << 20
    with copied.open("rb") as file:
        assert file.read(5) == b"start"
        file.seek(50 << 20)
        assert file.read(6) == b"middle"


def test_a_fifo_is_made_and_never_opened(pair):
    source, target = pair
    os.mkfifo(source / "fifo", 0o640)
    copy_tree(str(source), str(target))
    mode = (target / "fifo").lstat().st_mode
    assert (stat.S_ISFIFO(mode), stat.S_IMODE(mode)) == (True, 0o640)


def test_sockets_are_left_out(pair):
    import socket

    source, target = pair
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "socket"))
        copy_tree(str(source), str(target))
    assert list(target.iterdir()) == []


def test_odd_names(pair):
    source, target = pair
    names = [b"new\nline", b"\xff\xfe", b" ", b"-rf", b"\xe2\x80\xae", b"x" * 255]
    for name in names:
        (Path(os.fsdecode(os.path.join(os.fsencode(source), name)))).write_text("x")
    copy_tree(str(source), str(target))
    assert sorted(os.listdir(os.fsencode(target))) == sorted(names)


@pytest.mark.parametrize("shape", ["deep", "wide"])
def test_descriptors_do_not_grow_with_the_tree(pair, shape):
    source, target = pair
    if shape == "wide":
        for number in range(300):
            (source / str(number)).mkdir()
    else:
        (source / "/".join(["d"] * 300)).mkdir(parents=True)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)); "
        "from atoll.jail.walls.copytree import copy_tree; copy_tree(*sys.argv[1:])"
    )
    subprocess.run([sys.executable, "-c", code, source, target], check=True)
    assert sum(len(folders) for _, folders, _ in os.walk(target)) == 300


def test_no_descriptor_is_left_open(pair):
    source, target = pair
    (source / "a").mkdir()
    (source / "a" / "file").write_text("x")
    before = os.listdir("/proc/self/fd")
    copy_tree(str(source), str(target))
    with pytest.raises(FileExistsError):
        copy_tree(str(source), str(target))
    assert os.listdir("/proc/self/fd") == before


def test_no_room_is_an_error(pair):
    source, target = pair
    (source / "big").write_bytes(b"x" * 100_000)
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "from atoll.jail.walls.copytree import copy_tree; copy_tree(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, source, target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "OSError" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000

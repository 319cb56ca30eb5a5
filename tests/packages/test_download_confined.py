"""The downloader is held: by Landlock, and where the kernel has none by a root of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ordinary_user import SOURCE, USER, python_for_user

from atoll.errors import PackageError
from atoll.packages import download
from atoll.packages.environment import ensure
from atoll.packages.progress import Progress

START = """
import sys; sys.path[:0] = [{source!r}]
from atoll.jail.walls import syscalls
if {without}: syscalls.landlock_version = lambda: 0
from atoll.packages.confined import main
main(sys.argv[2])
"""
PROBE = """
import os, socket, sys
secret, scratch, allowed, port = sys.argv[1:]
def can(work):
    try:
        return work() or True
    except OSError:
        return False
print([
    can(lambda: open(secret).read()), can(lambda: open(secret, "a")), can(lambda: open("/new", "w")),
    can(lambda: os.listdir(f"/proc/{os.getppid()}/fd")), can(lambda: open(allowed, "a")),
    can(lambda: open(allowed).close()), can(lambda: open(f"{scratch}/new", "w").close()),
    can(lambda: socket.create_connection(("127.0.0.1", int(port))).close()),
    can(lambda: open("/dev/null", "w").close()),
])
"""


@pytest.mark.parametrize("without", [False, True], ids=["landlock", "own root"])
@pytest.mark.parametrize("as_user", [False, True], ids=["caller", "ordinary user"])
def test_the_downloader_reads_and_writes_what_it_must_and_no_more(without, as_user):
    if as_user and os.geteuid() != 0:
        pytest.skip("all tests run as an ordinary user already")
    python = python_for_user() if as_user else sys.executable
    folder = Path(tempfile.mkdtemp(prefix="atoll-confined-"))
    scratch, secret, allowed = folder / "scratch", folder / "secret", folder / "allowed"
    scratch.mkdir()
    for file in (secret, allowed):
        file.write_text("text")
    who = {"user": USER, "group": USER, "extra_groups": []} if as_user else {}
    for path in (folder, scratch, secret, allowed) if as_user else ():
        os.chown(path, USER, USER)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        probe = [python, "-c", PROBE, str(secret), str(scratch), str(allowed), port]
        home = [sys.prefix, sys.base_prefix, str(SOURCE), str(allowed)]
        facts = json.dumps([os.getpid(), str(scratch), home, probe])
        start = START.format(source=str(SOURCE), without=without)
        done = subprocess.run(
            [python, "-c", start, "", facts], capture_output=True, text=True, env={}, **who
        )
    shutil.rmtree(folder)
    assert done.stdout == f"{[False] * 5 + [True] * 4}\n", done.stderr


def test_pip_downloads_in_a_root_of_its_own(cache, index, http_index, target, monkeypatch):
    index.wheel("tiny")
    without = "from atoll.jail.walls import syscalls; syscalls.landlock_version = lambda: 0; "
    boot = download._BOOT.replace(
        "from atoll.packages.confined", without + "from atoll.packages.confined"
    )
    monkeypatch.setattr(download, "_BOOT", boot)
    hold = ensure(["tiny"], target)
    hold.close()
    assert [one.name for one in hold.environment.packages] == ["tiny"]


@pytest.mark.usefixtures("cache")
def test_a_package_that_a_local_index_lacks_is_not_a_missing_index(target, tmp_path, monkeypatch):
    (tmp_path / "simple").mkdir()
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}/simple")
    with pytest.raises(PackageError, match=r"no wheel for Python .* in the index"):
        ensure(["no-such-package"], target)
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}/nowhere")
    with pytest.raises(PackageError, match=r"there is no index at .*nowhere"):
        ensure(["no-such-package"], target)


@pytest.mark.parametrize("allowed", [False, True], ids=["by default", "if allowed"])
@pytest.mark.usefixtures("cache", "http_index")
def test_without_landlock_and_namespaces_pip_runs_only_if_allowed(
    index, target, tmp_path, monkeypatch, allowed
):
    index.wheel("tiny")
    without = (
        "from atoll.jail.walls import syscalls; syscalls.landlock_version = lambda: 0\n"
        "def no(*_): raise PermissionError(1, 'Operation not permitted')\n"
        "syscalls.unshare = no\n"
    )
    boot = download._BOOT.replace("; from atoll", f"\n{without}from atoll").replace("; ", "\n")
    monkeypatch.setattr(download, "_BOOT", boot)
    if allowed:
        monkeypatch.setenv("ATOLL_UNCONFINED_PIP", "1")
        ensure(["tiny"], target).close()
        assert download.by_hand(["tiny"], target, tmp_path)
        return
    for said in (None, "0", "yes"):
        if said:
            monkeypatch.setenv("ATOLL_UNCONFINED_PIP", said)
        with pytest.raises(
            PackageError, match=r"pip cannot be confined: .* set ATOLL_UNCONFINED_PIP"
        ):
            ensure(["tiny"], target)
    with pytest.raises(PackageError, match="pip cannot be confined"):  # as for wasm and pyodide
        download.by_hand(["tiny"], target, tmp_path)


def test_an_unknown_machine_confines_nothing_and_refuses(target, tmp_path, monkeypatch):
    without = "from atoll.jail.walls import syscalls\nsyscalls.supported = lambda: False\n"
    boot = download._BOOT.replace("; from atoll", f"\n{without}from atoll").replace("; ", "\n")
    monkeypatch.setattr(download, "_BOOT", boot)
    with Progress("x") as progress:
        said = download.confined(["/bin/echo", "ran"], target, tmp_path, progress)
    assert said.code != 0
    assert "pip cannot be confined" in said.text
    assert "ran" not in said.text


def test_a_program_is_run_by_a_link_to_it(target, tmp_path):
    """As `uv` often is: a link in one folder to the program in another."""
    program, link = tmp_path / "programs" / "tool", tmp_path / "links" / "tool"
    for folder in (program.parent, link.parent, tmp_path / "scratch"):
        folder.mkdir()
    shutil.copy("/bin/echo", program)
    link.symlink_to(program)
    said = download.confined([str(link), "ran"], target, tmp_path / "scratch", Progress("a tool"))
    assert (said.code, said.text) == (0, "ran\n"), said.text

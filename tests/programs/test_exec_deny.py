"""Rules that deny hold against links, moves, races and other programs in the same folder."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Exec = Callable[..., Any]
SHELL = ("sh", "-c")


@pytest.mark.parametrize("rule", ["--deny-write", "--deny-read"])
def test_a_link_that_leads_to_a_denied_path_cannot_be_replaced(
    atoll_exec: Exec, project: Path, rule: str
) -> None:
    (project / "real" / "deep").mkdir(parents=True)
    (project / "real" / "deep" / "f").write_text("mine\n")
    (project / "first").symlink_to("second")
    (project / "second").symlink_to("real")
    script = (
        "rm first; rm second; mv second x; ln -sfn /tmp first; mv real other; echo x > first/deep/f;"
        "rm -rf first second real; mkdir -p first/deep; echo x > first/deep/f; ls first/deep"
    )
    atoll_exec(rule, "first/deep/f", *SHELL, script)
    assert os.readlink(project / "first") == "second"
    assert os.readlink(project / "second") == "real"
    assert (project / "real" / "deep" / "f").read_text() == "mine\n"


def test_a_dangling_link_is_denied_where_a_write_would_land(
    atoll_exec: Exec, project: Path
) -> None:
    (project / "link").symlink_to("to/nothing")
    script = "mkdir -p to; echo x > link; echo x > to/nothing; rm link; ls -l link"
    done = atoll_exec("--deny-write", "link", *SHELL, script)
    assert "link -> to/nothing" in done.stdout
    assert not (project / "to").exists()
    assert (project / "link").is_symlink()


@pytest.mark.parametrize("target", ["../victim", "{top}/victim"])
def test_a_link_in_the_place_of_a_repository_shows_nothing(
    atoll_exec: Exec, project: Path, tmp_path: Path, target: str
) -> None:
    """An archive can bring such a link, to a folder that has a file `config` or `hooks`."""
    (tmp_path / "victim" / "hooks").mkdir(parents=True)
    (tmp_path / "victim" / "config").write_text("s3cret")
    (project / ".git").symlink_to(target.format(top=tmp_path))
    done = atoll_exec(*SHELL, "cat .git/config ../victim/config; rm .git; mkdir .git; exit 5")
    assert done.returncode == 5, done.stderr
    assert "s3cret" not in done.stdout
    assert (project / ".git").is_symlink()


def test_no_way_of_moving_files_gets_around_a_rule(atoll_exec: Exec, project: Path) -> None:
    (project / "kept").write_text("mine\n")
    (project / "folder").mkdir()
    (project / "folder" / "kept").write_text("mine\n")
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
open("other", "w").write("theirs")
def attempt(call):
    try: call()
    except OSError: pass
EXCHANGE = 2
for name in (b"kept", b"folder", b"folder/kept"):
    libc.renameat2(-100, b"other", -100, name, EXCHANGE)
attempt(lambda: os.link("kept", "hard"))
attempt(lambda: os.rename("other", "kept"))
attempt(lambda: os.truncate("kept", 0))
attempt(lambda: os.chmod("kept", 0o777))
attempt(lambda: open("kept", "r+").write("theirs"))
attempt(lambda: os.open("/proc/self/cwd/kept", os.O_WRONLY | os.O_TRUNC))
fd = os.open("kept", os.O_RDONLY)
attempt(lambda: os.open(f"/proc/self/fd/{fd}", os.O_WRONLY))
attempt(lambda: os.setxattr("kept", "user.x", b"y"))
print(libc.mount(b"none", b"folder", b"tmpfs", 0, None), libc.umount2(b"kept", 2))
"""
    rules = ("--deny-write", "kept", "--deny-write", "folder/kept")
    done = atoll_exec(*rules, "/usr/bin/python3", "-c", code)
    assert done.stdout == "-1 -1\n", done.stderr
    for name in ("kept", "folder/kept"):
        assert (project / name).read_text() == "mine\n"
        assert stat.S_IMODE((project / name).stat().st_mode) != 0o777
    assert not (project / "hard").exists()


def test_a_hidden_path_stays_hidden_when_it_is_also_kept_from_writing(
    atoll_exec: Exec, project: Path
) -> None:
    (project / "f").write_text("s3cret")
    (project / "d" / ".git" / "hooks").mkdir(parents=True)
    (project / "d" / ".git" / "hooks" / "f").write_text("s3cret")
    rules = ("--deny-read", "f", "--deny-write", "f", "--deny-read", "d")
    done = atoll_exec(*rules, *SHELL, "cat f d/.git/hooks/f; echo ran")
    assert done.stdout == "ran\n", done.stderr


def test_a_path_stays_denied_while_another_run_ends(
    atoll_exec: Exec, project: Path, tmp_path: Path
) -> None:
    """The first run made what the second is covered by: it must not remove it."""
    argv = [sys.executable, "-m", "atoll", "exec", "--deny-write", "a/b", "cat"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=project, **pipes) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write(b"ready\n")
        first.stdin.flush()
        assert first.stdout.readline() == b"ready\n"
        script = "echo started; read go; rm -rf a; mkdir -p a/b && echo made; echo x > a/b; exit 3"
        second_argv = [*argv[:-1], *SHELL, script]
        with subprocess.Popen(second_argv, cwd=project, **pipes) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == b"started\n"
            first.communicate()
            assert first.returncode == 0
            assert (project / "a" / "b").exists(), "the second run still needs it"
            out, _ = second.communicate(b"go\n")
    assert out == b""
    assert not (project / "a").exists()


def test_what_a_crash_left_is_removed_by_the_next_run(atoll_exec: Exec, project: Path) -> None:
    argv = [sys.executable, "-m", "atoll", "exec", "--deny-write", "a/b", "cat"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=project, **pipes) as killed:
        assert killed.stdin is not None
        assert killed.stdout is not None
        killed.stdin.write(b"ready\n")
        killed.stdin.flush()
        killed.stdout.readline()
        killed.kill()
    assert (project / "a" / "b").exists()
    assert atoll_exec("--deny-write", "a/b", "true").returncode == 0
    assert not (project / "a").exists()


def test_links_that_change_while_a_jail_is_built_lead_nowhere(
    atoll_exec: Exec, project: Path, tmp_path: Path
) -> None:
    """Another program in the folder swaps a folder for a link to a secret, again and again."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "f").write_text("s3cret")
    (project / "sub").mkdir()
    (project / "sub" / "f").write_text("plain\n")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):  # a run has made a folder meanwhile
                os.rename(project / "sub", project / "aside")
                os.symlink(secret, project / "sub")
            with contextlib.suppress(OSError):
                os.unlink(project / "sub")
            with contextlib.suppress(OSError):
                os.rename(project / "aside", project / "sub")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(12):
            rules = ("--deny-write", "sub/f", "--deny-write", "sub/new")
            done = atoll_exec(*rules, *SHELL, "cat sub/f sub/*; echo x > sub/f")
            assert "s3cret" not in done.stdout
    finally:
        stop.set()
        thread.join()
    assert (secret / "f").read_text() == "s3cret"
    assert [path.name for path in secret.iterdir()] == ["f"]


def test_repositories_below_and_submodules_are_protected(atoll_exec: Exec, project: Path) -> None:
    for git in ("a/b/.git", ".git/modules/libs/one", ".git"):
        (project / git).mkdir(parents=True, exist_ok=True)
        (project / git / "HEAD").write_text("ref: refs/heads/main\n")
        (project / git / "config").write_text("[core]\n")
    (project / "worktree").mkdir()
    (project / "worktree" / ".git").write_text("gitdir: ../.git/worktrees/w\n")
    script = (
        "for g in a/b/.git .git/modules/libs/one .git; do echo x >> $g/config; mkdir -p $g/hooks;"
        "echo x > $g/hooks/post-checkout; touch $g/index; done;"
        "echo gitdir: /tmp > worktree/.git; mkdir -p c/.git; echo x > c/.git/config"
    )
    done = atoll_exec(*SHELL, script)
    for git in ("a/b/.git", ".git/modules/libs/one", ".git"):
        assert (project / git / "config").read_text() == "[core]\n"
        assert not (project / git / "hooks").exists()
        assert (project / git / "index").exists()
    assert (project / "worktree" / ".git").read_text() == "gitdir: ../.git/worktrees/w\n"
    assert "it made c/.git/config" in done.stderr


def test_a_protected_path_can_be_allowed_by_name(atoll_exec: Exec, project: Path) -> None:
    (project / ".vscode").mkdir()
    assert atoll_exec(*SHELL, "echo x > .vscode/f").returncode != 0
    done = atoll_exec("--write", ".vscode", *SHELL, "echo x > .vscode/f")
    assert done.returncode == 0, done.stderr
    assert (project / ".vscode" / "f").exists()

"""`atoll exec`: any program, in a jail, with the streams and the exit code that it has without."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll

Exec = Callable[..., Any]


def test_it_works_on_the_current_folder_and_sees_nothing_else_of_the_user(
    atoll_exec: Exec, project: Path
) -> None:
    (project.parent / "beside").write_text("secret")
    done = atoll_exec("sh", "-c", f"pwd; echo made > new; cat ../beside; ls {Path.home()}; exit 7")
    assert done.returncode == 7
    assert done.stdout == f"{project}\n"
    assert (project / "new").read_text() == "made\n"
    assert (project / "new").stat().st_uid == os.getuid()
    assert "secret" not in done.stdout + done.stderr


def test_stdin_bytes_and_signals_are_as_without_a_jail(atoll_exec: Exec) -> None:
    given = bytes(range(256)) * 1000
    assert atoll_exec("cat", input=given, text=False).stdout == given
    assert atoll_exec("sh", "-c", "kill -9 $$").returncode == 128 + 9
    assert atoll_exec("--timeout", "0.3", "sleep", "60").returncode == 124


def test_options_of_the_program_are_its_own(atoll_exec: Exec) -> None:
    assert atoll_exec("echo", "--read", "-n").stdout == "--read -n\n"
    assert atoll_exec("--env", "A=1", "--", "sh", "-c", "echo $A").stdout == "1\n"
    wrong = atoll_exec("--raed", "x", "true")
    assert wrong.returncode == 2
    assert "Did you mean --read" in wrong.stderr


def test_variables_of_the_caller_stay_outside(atoll_exec: Exec) -> None:
    env = {**os.environ, "AWS_SECRET_ACCESS_KEY": "s3cret", "LANG": "C.UTF-8"}
    text = atoll_exec("env", env=env).stdout
    assert "s3cret" not in text
    assert "LANG=C.UTF-8" in text


def test_files_that_other_programs_obey_stay_as_they_are(atoll_exec: Exec, project: Path) -> None:
    (project / ".git" / "hooks").mkdir(parents=True)
    (project / ".git" / "config").write_text("[core]\n")
    script = (
        "echo x > .git/hooks/pre-commit; echo x >> .git/config; rm .git/config;"
        "mv .git moved && mkdir -p .git/hooks && echo x > .git/hooks/pre-commit;"
        "ln -s /tmp .git/link; echo ok > .git/index; echo '{}' > .mcp.json"
    )
    done = atoll_exec("sh", "-c", script)
    assert not list((project / ".git" / "hooks").iterdir())
    assert (project / ".git" / "config").read_text() == "[core]\n"
    assert (project / ".git" / "index").read_text() == "ok\n", "the rest of the folder is writable"
    assert not (project / "moved").exists(), "a folder on the way to a denied path cannot be moved"
    assert "it made .mcp.json" in done.stderr


def test_a_denied_path_that_does_not_exist_cannot_be_made(atoll_exec: Exec, project: Path) -> None:
    script = "echo x > a/b; mkdir -p a/b; rm -rf a; mv a c; ln -s /etc/passwd a/b; ls a"
    done = atoll_exec("--deny-write", "a/b", "sh", "-c", script)
    assert done.stdout == "b\n"
    assert not (project / "a").exists(), "what was made to be denied is removed"
    assert not (project / "c").exists()


def test_what_is_denied_cannot_be_read_by_any_name(atoll_exec: Exec, project: Path) -> None:
    (project / "keys").mkdir()
    (project / "keys" / "one").write_text("s3cret")
    (project / "link").symlink_to("keys")
    (project / ".env").write_text("s3cret")
    script = "cat .env keys/one link/one; chmod 777 .env keys; cat .env; mv keys other; cat other/*"
    done = atoll_exec("--deny-read", "keys", "--deny-read", ".env", "sh", "-c", script)
    assert "s3cret" not in done.stdout + done.stderr
    assert (project / "keys" / "one").read_text() == "s3cret"
    assert (project / ".env").read_text() == "s3cret"


def test_more_folders_are_shown_by_name(atoll_exec: Exec, tmp_path: Path) -> None:
    for name in ("seen", "written"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    script = f"cat {tmp_path}/seen/f; echo no > {tmp_path}/seen/f; echo yes > {tmp_path}/written/f"
    words = ("--read", str(tmp_path / "seen"), "--write", str(tmp_path / "written"))
    assert atoll_exec(*words, "sh", "-c", script).stdout == "seen"
    assert (tmp_path / "seen" / "f").read_text() == "seen"
    assert (tmp_path / "written" / "f").read_text() == "yes\n"
    assert atoll_exec("--read-only", "touch", "x").returncode == 1


def test_a_file_of_the_folder_may_forbid_but_not_allow(
    atoll_exec: Exec, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").write_text("theirs")
    (project / "mine").write_text("mine")
    (project / ".atoll.toml").write_text(
        f'[exec]\nwrite = ["{tmp_path}/other"]\ndeny_read = ["mine"]\nenv = {{ MODE = "x" }}\n'
    )
    script = f"cat mine; echo changed > {tmp_path}/other; echo mode $MODE; echo > .atoll.toml"
    done = atoll_exec("sh", "-c", script)
    assert done.stdout == "mode\n"
    assert "asks for more (write, env)" in done.stderr
    assert (tmp_path / "other").read_text() == "theirs"
    done = atoll_exec("--settings", ".atoll.toml", "sh", "-c", script)
    assert done.stdout == "mode x\n"
    assert (tmp_path / "other").read_text() == "changed\n"


def test_hosts_are_reached_by_name_and_refusals_are_reported(
    atoll_exec: Exec, project: Path
) -> None:
    argv = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with subprocess.Popen(argv, cwd=project, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            host = f"127.0.0.1:{server.stdout.readline().split('port ')[1].split()[0]}"
            (project / "page").write_text("reached")
            script = (
                "import urllib.request as u\nprint(u.urlopen('http://HOST/page').read().decode())\n"
                "try: u.urlopen('http://denied.example/')\nexcept OSError as e: print(e)"
            ).replace("HOST", host)
            program = ("/usr/bin/python3", "-c", script)
            done = atoll_exec("--allow-host", host, "--report", "report.json", *program)
            assert done.stdout.startswith("reached"), done.stderr
            assert "add --allow-host denied.example:80" in done.stderr
            report = json.loads((project / "report.json").read_text())
            assert [refusal["host"] for refusal in report["refused"]] == ["denied.example"]
            assert "reached" not in atoll_exec(*program).stdout
        finally:
            server.kill()


def test_explain_names_each_rule_and_runs_nothing(atoll_exec: Exec, project: Path) -> None:
    done = atoll_exec("--explain", "--deny-write", "lock", "touch", "x")
    assert done.returncode == 0
    assert f"write      {project}" in done.stdout
    assert "--deny-write" in done.stdout
    assert not (project / "x").exists()


def test_a_program_that_is_not_shown_is_named_with_what_to_type(
    atoll_exec: Exec, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "sometool"
    tool.write_text("#!/bin/sh\necho here\n")
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    refused = atoll_exec("sometool", env=env)
    assert refused.returncode == 126
    assert f"add --read {tmp_path}" in refused.stderr
    assert atoll_exec("--read", str(tmp_path), "sometool", env=env).stdout == "here\n"
    missing = atoll_exec("no-such-tool")
    assert "no such program" in missing.stderr
    assert missing.returncode == 127
    tool.chmod(0o644)
    plain = atoll_exec("--read", str(tmp_path), str(tool))
    assert plain.returncode == 126
    assert f"chmod +x {tool}" in plain.stderr
    assert atoll_exec(str(tmp_path)).returncode == 126
    env["PATH"] = f"/root/of-another-user:{os.environ['PATH']}"
    assert atoll_exec("true", env=env).returncode == 0
    assert "does not exist" in atoll_exec("--read", "/root/of-another-user", "true").stderr


def _until(fd: int, text: bytes) -> bytes:
    """Read a terminal until it has shown a text; what was read so far if it takes too long."""
    seen, end = b"", time.monotonic() + 20
    while text not in seen and time.monotonic() < end:
        if select.select([fd], [], [], 0.5)[0]:
            try:
                seen += os.read(fd, 65536)
            except OSError:
                break
    return seen


def test_a_terminal_has_job_control_and_a_size(project: Path) -> None:
    """A shell on a terminal: Ctrl-Z, jobs, fg, Ctrl-C; then its exit code."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(project)
        words = ["-m", "atoll", "exec", "--env", "PS1=$ ", "bash", "--norc", "-i"]
        os.execv(sys.executable, [sys.executable, *words])
    try:
        assert b"$ " in _until(fd, b"$ ")
        os.write(fd, b"stty rows 33 cols 77; stty size; tty\n")
        assert b"33 77" in _until(fd, b"/dev/pts/")
        os.write(fd, b"sleep 100\n")
        time.sleep(0.3)
        os.write(fd, b"\x1a")
        assert b"Stopped" in _until(fd, b"Stopped")
        os.write(fd, b"fg\n")
        time.sleep(0.3)
        os.write(fd, b"\x03")
        os.write(fd, b"echo code=$?\n")
        assert b"code=130" in _until(fd, b"code=130")
        os.write(fd, b"echo hi > /dev/tty; exit 5\n")
        assert b"hi" in _until(fd, b"no such text: read to the end")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 5


def test_a_program_cannot_type_into_the_terminal_of_its_caller(
    atoll_exec: Exec, project: Path
) -> None:
    """Without a terminal it has none to open; with one, it is the jail's."""
    script = "import os\nprint(os.isatty(0), os.path.exists('/dev/pts/0'))\nopen('/dev/tty')"
    done = atoll_exec("/usr/bin/python3", "-c", script, stdin=subprocess.DEVNULL)
    assert done.stdout == "False False\n"
    assert "No such device or address" in done.stderr


def test_the_home_folder_is_not_opened_by_accident(atoll_exec: Exec) -> None:
    done = atoll_exec("true", cwd=Path.home())
    assert done.returncode == 2
    assert "is your home folder" in done.stderr


def test_from_python(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    end = atoll.run_program(["sh", "-c", "echo x > made; exit 3"])
    assert end.exit_code == 3
    assert (project / "made").exists()
    with pytest.raises(atoll.ConfigError, match="no such program"):
        atoll.run_program(["no-such-tool"])

"""The machine itself as a sandbox: commands end with all that they started, files stay inside."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
from shells import Awaited

import atoll
from atoll.shell import local


@pytest.fixture
def box(tmp_path):
    with atoll.LocalSandbox(tmp_path) as one:
        yield one


@pytest.fixture(autouse=True)
def no_descriptor_is_left():
    atoll.concurrency.portal.Portal.shared()
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before)


def wait_for(happened):
    end = time.monotonic() + 30
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def alive(pid):
    """Whether there is such a process that is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(path):
    return [int(word) for word in path.read_text().split()] if path.exists() else []


LEAVES_FOUR = """
sleep 1000 & echo $! >> pids
setsid sleep 1000 & echo $! >> pids
(setsid bash -c 'echo $$ >> pids; env -i sleep 1000 & echo $! >> pids; wait' </dev/null >/dev/null 2>&1 &)
while [ $(wc -w < pids) -lt 4 ]; do sleep 0.01; done
"""
"""Children of the shell, one in a session of its own, and two that have no parent but init."""


@pytest.mark.spec("R3.1", "R3.10")
def test_output_is_merged_in_order_with_the_exit_code(box):
    found = box.execute("echo one; echo two >&2; echo three; exit 42")
    assert found == atoll.ExecuteResponse(output="one\ntwo\nthree\n", exit_code=42)
    assert box.execute("kill -TERM $$").exit_code == 128 + signal.SIGTERM
    assert box.execute("no-such-command").exit_code == 127
    assert box.execute("printf '\\xff\\xc3\\xa9'").output == "\ufffdé"
    assert box.execute("cat").output == ""
    assert box.execute("[[ a == a ]] && echo $((1 + 1)) $PWD").output == f"2 {box._inner._cwd}\n"


@pytest.mark.spec("R3.10")
def test_output_past_the_limit_is_cut_and_blocks_nobody(box, tmp_path):
    found = box.execute("head -c 5000000 /dev/zero | tr '\\0' x; echo done > done")
    assert found.truncated
    assert len(found.output.encode()) <= 1 << 20
    assert (found.exit_code, (tmp_path / "done").read_text()) == (0, "done\n")
    exact = box.execute(f"head -c {1 << 20} /dev/zero | tr '\\0' x")
    assert (exact.output, exact.truncated) == ("x" * (1 << 20), False)


@pytest.mark.spec("R3.10")
def test_a_deadline_ends_all_that_a_command_started(box, tmp_path):
    found = box.execute(f"echo begun; {LEAVES_FOUR} sleep 1000", timeout=3000)
    assert (found.output, found.exit_code) == ("begun\n", 124)
    assert found.error == "the command took longer than 3000 ms and was ended"
    left = pids(tmp_path / "pids")
    assert len(left) == 4
    assert not any(map(alive, left))


def test_the_sandbox_has_a_deadline_of_its_own(tmp_path):
    with atoll.LocalSandbox(tmp_path, timeout=300) as box:
        assert box.execute("sleep 1000").exit_code == 124


def test_signals_that_are_ignored_do_not_save_a_command(box):
    assert box.execute("trap '' TERM INT HUP; sleep 1000", timeout=300).exit_code == 124


def test_a_background_process_does_not_hold_up_its_command(box, tmp_path):
    found = box.execute("sleep 1000 & echo $! > pids; echo begun")
    assert (found.output, found.exit_code) == ("begun\n", 0)
    (pid,) = pids(tmp_path / "pids")
    assert alive(pid)
    box.close()
    assert not alive(pid)


def test_a_background_process_can_print_on(box, tmp_path):
    box.execute("(sleep 0.5; head -c 1000000 /dev/zero; echo $? > code) & echo begun")
    assert wait_for(lambda: (tmp_path / "code").exists() and (tmp_path / "code").read_text())
    assert (tmp_path / "code").read_text() == "0\n"


def test_closing_ends_all_that_was_left(box, tmp_path):
    assert box.execute(LEAVES_FOUR).exit_code == 0
    left = pids(tmp_path / "pids")
    assert all(map(alive, left))
    box.close()
    assert not any(map(alive, left))
    box.close()
    for call in (lambda: box.execute("true"), lambda: box.read("a")):
        with pytest.raises(atoll.SandboxClosedError, match="make a new LocalSandbox"):
            call()


def test_what_is_cancelled_leaves_nothing(tmp_path):
    async def cancelled():
        async with atoll.aio.LocalSandbox(tmp_path) as box:
            task = asyncio.create_task(box.execute(f"{LEAVES_FOUR} sleep 1000"))
            await asyncio.to_thread(wait_for, lambda: len(pids(tmp_path / "pids")) == 4)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not any(map(alive, pids(tmp_path / "pids")))

    asyncio.run(cancelled())


def test_cancelled_at_any_moment_nothing_is_left(tmp_path):
    async def cancelled(box, pauses):
        task = asyncio.create_task(box.execute("echo $$ >> pids; exec sleep 1000"))
        for _ in range(pauses):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def many():
        async with atoll.aio.LocalSandbox(tmp_path) as box:
            for pauses in range(8):
                await cancelled(box, pauses)
            assert not any(map(alive, pids(tmp_path / "pids")))

    asyncio.run(many())


def test_an_interrupt_from_the_keyboard_leaves_nothing(box, tmp_path):
    def press():
        wait_for(lambda: len(pids(tmp_path / "pids")) == 4)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread, and this is another")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            box.execute(f"{LEAVES_FOUR} sleep 1000")
    finally:
        signal.signal(signal.SIGINT, before)
    assert wait_for(lambda: not any(map(alive, pids(tmp_path / "pids"))))


def test_a_host_that_is_killed_leaves_nothing(tmp_path):
    code = f"import atoll; atoll.LocalSandbox({str(tmp_path)!r}).execute({LEAVES_FOUR + 'sleep 1000'!r})"
    host = subprocess.Popen([sys.executable, "-c", code])
    assert wait_for(lambda: len(pids(tmp_path / "pids")) == 4)
    host.kill()
    host.wait()
    assert wait_for(lambda: not any(map(alive, pids(tmp_path / "pids"))))


def test_a_command_that_kills_its_supervisor_is_ended(box, tmp_path):
    found = box.execute("echo $$ > pids; kill -KILL $PPID; sleep 1000")
    assert (found.exit_code, found.error) == (None, "the command's supervisor was killed")
    assert wait_for(lambda: not any(map(alive, pids(tmp_path / "pids"))))


def test_a_loop_that_is_gone_holds_nobody_up(tmp_path):
    box = Awaited(atoll.aio.LocalSandbox(tmp_path))
    assert box.execute("sleep 1000 & echo $! > pids; echo begun").output == "begun\n"
    assert box.execute("echo again").output == "again\n"
    box.close()
    assert not any(map(alive, pids(tmp_path / "pids")))
    del box
    with warnings.catch_warnings():  # of what the loop has not closed
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_a_command_may_end_its_own_group(box):
    assert box.execute("trap 'kill -KILL 0' EXIT; echo begun").exit_code == 128 + signal.SIGKILL
    assert box.execute("echo on").output == "on\n"


def test_commands_at_the_same_time(tmp_path):
    async def many():
        async with atoll.aio.LocalSandbox(tmp_path) as box:
            commands = [f"sleep 0.{9 - n}; echo {n}" for n in range(5)]
            return await asyncio.gather(*map(box.execute, commands))

    assert [one.output for one in asyncio.run(many())] == [f"{n}\n" for n in range(5)]


@pytest.mark.spec("R3.10")
def test_secrets_of_the_host_are_not_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", "hunter2")
    monkeypatch.setenv("LC_MONETARY", "C")
    monkeypatch.setenv("TZ", "UTC")
    with atoll.LocalSandbox(tmp_path, env={"MINE": "a b", "TERM": "own"}) as box:
        lines = box.execute("env; cat /proc/$PPID/environ | tr '\\0' '\\n'").output
    assert "hunter2" not in lines
    assert {"MINE=a b", "TERM=own", "LC_MONETARY=C", "TZ=UTC"} <= set(lines.split("\n"))
    known = {*local.INHERITED, "MINE", "PWD", "OLDPWD", "SHLVL", "_"}
    names = {line.partition("=")[0] for line in lines.split("\n") if line}
    assert not {name for name in names - known if not name.startswith("LC_")}


@pytest.mark.spec("R3.10")
def test_every_sandbox_has_a_name_of_its_own(box, tmp_path):
    with atoll.LocalSandbox(tmp_path) as other:
        assert other.id != box.id
    assert re.fullmatch(r"local-\d+-[a-z0-9]+", box.id)


def test_it_says_that_it_isolates_nothing(box):
    assert box.isolation is atoll.Isolation.NONE
    assert "no isolation" in repr(box)
    for kind in (atoll.LocalSandbox, atoll.aio.LocalSandbox):
        assert "ISOLATES NOTHING" in kind.__doc__


@pytest.mark.spec("R3.10", "R3.11")
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_files_are_those_of_the_folder(tmp_path, kind):
    with contextlib.ExitStack() as stack:
        box = atoll.LocalSandbox(tmp_path)
        stack.callback(box.close)
        if kind == "async":
            box = Awaited(atoll.aio.LocalSandbox(tmp_path))
            stack.callback(box.close)
        assert box.write("/sub/a.txt", "foo bar\n").path == "/sub/a.txt"
        assert (tmp_path / "sub/a.txt").read_text() == "foo bar\n"
        for path in ("/sub/a.txt", "sub/a.txt", str(tmp_path / "sub/a.txt")):
            assert box.read(path) == "     1\tfoo bar"
        assert box.edit("/sub/a.txt", "bar", "baz").occurrences == 1
        assert box.execute("cat sub/a.txt").output == "foo baz\n"
        assert box.read_raw("sub/a.txt").content == ["foo baz", ""]
        assert [one.path for one in box.ls()] == ["sub"]
        assert [one.path for one in box.ls(str(tmp_path / "sub"))] == ["a.txt"]
        assert [(hit.path, hit.line) for hit in box.grep("baz")] == [("sub/a.txt", 1)]
        assert [one.path for one in box.glob("**/*.txt")] == ["sub/a.txt"]
        assert box.upload([("b", b"\0")])[0].error is None
        assert box.download(["b"])[0].content == b"\0"


def test_a_folder_that_is_reached_by_a_link_is_known_by_both_names(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a").write_text("x")
    (tmp_path / "link").symlink_to("real")
    with atoll.LocalSandbox(tmp_path / "link") as box:
        for path in ("a", "/a", str(tmp_path / "link/a"), str(tmp_path / "real/a")):
            assert box.read(path) == "     1\tx"


@pytest.mark.spec("R3.10")
def test_no_path_leaves_the_folder(tmp_path):
    (tmp_path / "secret").write_text("secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to("../secret")
    (inside / "absolute").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to("..")
    with atoll.LocalSandbox(inside) as box:
        for path in (
            "../secret",
            "/../secret",
            "link",
            "absolute",
            "up/secret",
            str(tmp_path / "secret"),
        ):
            assert box.read(path).startswith("Error: File")
            assert box.download([path])[0].content is None
        assert box.write("up/new", "x").error
        assert box.write("../new", "x").error
        assert box.grep("secret") == []
        assert box.ls("up") == []
        assert box.upload([("link", b"mine")])[0].error is None
        assert box.write(str(tmp_path / "new"), "x").error is None
    assert (tmp_path / "secret").read_text() == "secret"
    assert sorted(os.listdir(tmp_path)) == ["inside", "secret"]
    assert (inside / str(tmp_path)[1:] / "new").read_text() == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cwd": "a\0b"}, "cwd contains a zero byte"),
        ({"cwd": b"/tmp"}, "cwd must be a str or a pathlib path"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"timeout": -1}, "timeout must be positive"),
        ({"timeout": None}, "number of milliseconds"),
        ({"timeout": "1"}, "timeout must be a number"),
        ({"env": {"A=B": "x"}}, "not an environment variable"),
        ({"env": {"": "x"}}, "not an environment variable"),
        ({"env": {"A": "\0"}}, "not an environment variable"),
        ({"env": {"A": 1}}, "str to str"),
    ],
)
def test_bad_arguments_are_refused_in_words(options, message):
    with pytest.raises(atoll.ConfigError, match=message):
        atoll.LocalSandbox(**options)


def test_bad_arguments_of_a_command_are_refused_in_words(box):
    with pytest.raises(atoll.ConfigError, match="must be a str"):
        box.execute(None)
    with pytest.raises(atoll.ConfigError, match="timeout must be positive"):
        box.execute("true", timeout=0)


def test_a_command_may_be_as_long_as_the_kernel_takes(box):
    command = "echo ok #"
    assert box.execute(command + "x" * (local.MAX_COMMAND - len(command))).output == "ok\n"


@pytest.mark.spec("R3.12")
def test_without_bash_it_says_so(tmp_path):
    with atoll.LocalSandbox(tmp_path, env={"PATH": str(tmp_path)}) as box:
        response = box.execute("true")
        assert response.exit_code == 1
        assert response.output.startswith("Error: bash cannot be started: No such file")
        assert response.error == response.output.removeprefix("Error: ")
        assert box.execute("true") == response


@pytest.mark.spec("R3.12", "R3.13")
@pytest.mark.parametrize(
    ("command", "message"),
    [("a\0b", "the command contains a zero byte"), ("x" * 200_000, "write it to a file")],
)
def test_a_command_that_the_kernel_does_not_take_is_an_error_with_exit_code_1(
    box, command, message
):
    response = box.execute(command)
    assert (response.exit_code, response.truncated) == (1, False)
    assert response.output.startswith("Error: ")
    assert message in response.output
    assert response.error == response.output.removeprefix("Error: ")
    assert str(response) == response.output  # the reason is there once


@pytest.mark.spec("R3.12", "R3.13")
@pytest.mark.parametrize("kind", ["async", "blocking"])
@pytest.mark.parametrize("path", ["/no/such/folder", "/dev/null"])
def test_without_its_folder_commands_fail_and_no_file_is_found(kind, path):
    box = (
        atoll.LocalSandbox(path)
        if kind == "blocking"
        else Awaited(atoll.aio.LocalSandbox(cwd=path))
    )
    response = box.execute("echo hello")
    assert response.exit_code == 1
    assert response.output.startswith(f"Error: no command can be started in {path}: N")
    assert box.ls_info("/") == box.grep_raw("x") == box.glob_info("*") == []
    assert box.read("a").startswith("Error: File 'a' ")
    assert box.edit("a", "b", "c").error.startswith("Error: File 'a' ")
    assert f"the working folder '{path}' cannot be used" in box.write("a", "b").error
    with pytest.raises(OSError, match="File 'a'"):
        box.read_raw("a")
    box.close()
    with pytest.raises(atoll.SandboxClosedError):
        box.ls()


@pytest.mark.spec("R3.13")
def test_a_folder_that_is_made_later_is_used(tmp_path):
    with atoll.LocalSandbox(tmp_path / "later") as box:
        assert box.read("a") == "Error: File 'a' not found"
        (tmp_path / "later").mkdir()
        assert box.write("a", "b").error is None
        assert box.execute("cat a").output == "b"


@pytest.mark.spec("R3.13")
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_operations_have_a_second_name_and_replace_all_a_position(tmp_path, kind):
    inner = atoll.LocalSandbox(tmp_path)
    box = inner if kind == "blocking" else Awaited(atoll.aio.LocalSandbox(tmp_path))
    box.write("/sub/a.txt", "foo foo\n")
    assert box.edit("/sub/a.txt", "foo", "bar").error
    assert box.edit("/sub/a.txt", "foo", "bar", True).occurrences == 2
    assert box.ls_info(str(tmp_path)) == box.ls() != []
    assert box.grep_raw("bar", "/", "*.txt") == box.grep("bar") != []
    assert box.glob_info("**/*.txt", "/") == box.glob("**/*.txt") != []
    box.close()
    inner.close()


def test_the_options_of_a_local_sandbox_are_its_arguments():
    arguments = list(inspect.signature(atoll.LocalSandbox).parameters)
    assert list(atoll.LocalSandboxOptions.__annotations__) == arguments


@pytest.mark.spec("R3.12")
def test_in_a_folder_that_has_gone_no_command_is_started(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with atoll.LocalSandbox(folder) as box:
        folder.rmdir()
        response = box.execute("true")
        assert response.exit_code == 1
        assert response.output.startswith("Error: no command can be started in")
        assert not response.truncated


@pytest.mark.spec("R3.11")
def test_it_is_a_sandbox_backend(box):
    assert isinstance(box, atoll.SandboxBackendProtocol)
    assert isinstance(box._inner, atoll.SandboxBackendProtocol)

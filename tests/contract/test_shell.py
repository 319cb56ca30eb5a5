"""Shell commands beside the session's Python: output, exit codes, the same files, what lives on."""

from __future__ import annotations

import socket
import sys
import threading

import pytest

import atoll
from atoll import Capability, ConfigError, ExecutionPolicy
from atoll.backends import registry
from atoll.sandbox.command import MAX_COMMAND_LENGTH

SHELL = pytest.mark.needs(Capability.SHELL)
LONGEST_ARGUMENT = 128 << 10
"""What the kernel takes as one argument of a program."""


@SHELL
@pytest.mark.spec("R3.1")
def test_output_is_stdout_and_stderr_in_the_order_they_came(box):
    response = box.shell("echo one; echo two >&2; python3 -c 'print(3)'; ls /none; echo four >&2")
    lines = response.output.splitlines()
    assert lines[:3] == ["one", "two", "3"]
    assert "/none" in lines[3]
    assert lines[4:] == ["four"]
    assert (response.exit_code, response.truncated, response.error) == (0, False, None)


@SHELL
@pytest.mark.spec("R3.1")
@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("true", 0),
        ("false", 1),
        ("exit 77", 77),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("sh -c 'kill -9 $$'; exit $?", 137),
        ("if", 2),
    ],
)
def test_exit_codes_are_those_of_shells(box, command, exit_code):
    response = box.shell(command)
    assert (response.exit_code, response.error) == (exit_code, None)


@SHELL
@pytest.mark.spec("R3.1", "R3.11")
async def test_it_is_there_for_async_callers(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        response = await box.shell("echo hello")
        assert response == atoll.ExecuteResponse(output="hello\n", exit_code=0)


@pytest.mark.spec("R3.11")
def test_a_backend_without_a_shell_says_so(backend, open_box):
    if Capability.SHELL in registry.load(backend).capabilities:
        pytest.skip(f"backend {backend} has a shell")
    with pytest.raises(
        atoll.UnsupportedError, match=f"backend '{backend}' cannot run shell commands"
    ):
        open_box().shell("true")


@SHELL
@pytest.mark.spec("R3.11")
def test_it_sees_the_files_of_the_session_and_the_session_sees_its_files(box):
    box.execute("open('made.txt', 'w').write('by python')")
    assert box.shell("cat made.txt; mkdir sub; echo by shell > sub/new.txt").output == "by python"
    result = box.execute("open('mine.txt', 'w').write('')\nopen('sub/new.txt').read()")
    assert result.value == "by shell\n"
    assert result.files_created == ("mine.txt",)
    assert result.files_modified == ()


@SHELL
@pytest.mark.needs(Capability.HOST_FOLDER)
@pytest.mark.spec("R3.11")
def test_in_a_host_folder_too(open_box, tmp_path):
    (tmp_path / "given.txt").write_text("given")
    box = open_box(workspace=tmp_path)
    assert box.shell("cat given.txt; echo made > made.txt").output == "given"
    assert (tmp_path / "made.txt").read_text() == "made\n"
    assert box.execute("open('cell.txt', 'w').close()").files_created == ("cell.txt",)


@SHELL
def test_it_starts_in_the_working_folder_wherever_the_session_is(box):
    box.execute("import os; os.chdir('/tmp')")
    assert box.shell("pwd; cd /usr").output == "/app\n"
    assert box.execute("os.getcwd()").value == "/tmp"


@SHELL
def test_variables_of_the_session_are_kept(box):
    box.execute("x = iter([1, 2, 3]); next(x)")
    box.shell("false")
    assert box.execute("next(x)").value == 2


@SHELL
def test_it_has_the_environment_of_the_session(open_box):
    box = open_box(policy=ExecutionPolicy(env={"GIVEN": "by the caller"}))
    box.execute("import os; os.environ['SET'] = 'by a cell'")
    assert box.shell("echo $GIVEN, $SET; export LOST=1").output == "by the caller, by a cell\n"
    assert box.shell("echo $HOME $LOST").output == "/home/guest\n"


@SHELL
@pytest.mark.parametrize("name", ["python", "python3"])
@pytest.mark.parametrize("path", [None, "/nowhere", "/usr/bin"])
def test_python_is_that_of_the_session(box, name, path):
    if path:
        box.execute(f"import os; os.environ['PATH'] = {path!r}")
    facts = "import sys; print(sys.version_info[:3], sys.prefix)"
    assert box.shell(f"{name} -c '{facts}'").output == box.execute(facts).stdout


@SHELL
def test_stdin_is_empty(box):
    response = box.shell("cat; read line; echo $?")
    assert (response.output, response.exit_code) == ("1\n", 0)


@SHELL
def test_it_is_bash(box):
    assert box.shell("x=(a b c); [[ ${x[1]} == b ]] && echo $BASH").output == "/bin/bash\n"


@SHELL
def test_it_runs_as_the_user_of_the_session_and_gains_nothing(box):
    ids = "import os; print(os.getuid(), os.getgid())"
    assert box.shell("echo $(id -u) $(id -g)").output == box.execute(ids).stdout
    kernel = box.backend == "gvisor"  # pid 1 is the guest's own there, with the same environment
    others = "" if kernel else "cat /proc/1/environ || "
    response = box.shell(f"echo x > /etc/passwd || {others}mount -t tmpfs none /tmp")
    assert response.exit_code != 0
    # gVisor looks at the owner first, who as an ordinary user is the guest's own user.
    refusals = (
        {"Read-only file system", "Permission denied"} if kernel else {"Read-only file system"}
    )
    assert any(refusal in response.output for refusal in refusals)


@SHELL
def test_there_is_no_network(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        response = box.shell(f"exec 3<>/dev/tcp/127.0.0.1/{port}")
        assert response.exit_code != 0
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()


@SHELL
@pytest.mark.spec("R3.1")
@pytest.mark.parametrize("length", [LONGEST_ARGUMENT - 2000, LONGEST_ARGUMENT, 2 << 20])
def test_a_command_of_any_length_runs(box, length):
    response = box.shell(f"x='{'é' * (length // 2)}'; echo ${{#x}}; cat; exit 5")
    assert (response.output, response.exit_code) == (f"{length // 2}\n", 5)
    assert box.files.ls() == [info for info in box.files.ls("/tmp") if not info.is_dir] == []


@SHELL
def test_the_longest_command_runs_whatever_its_characters_take(box):
    start = "echo ran; exit 3\n: "
    response = box.shell(start + "😀" * (MAX_COMMAND_LENGTH - len(start)))
    assert (response.output, response.exit_code) == ("ran\n", 3)


@SHELL
@pytest.mark.spec("R3.1")
@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo 'é 😀 \u2028'", "é 😀 \u2028\n"),
        (r"printf 'a\377b\303'", "a\ufffdb\ufffd"),
        (r"printf 'a\000b'", "a\0b"),
        ("printf '\udcff' | wc -c", "1\n"),
    ],
)
def test_output_of_any_bytes_is_text(box, command, output):
    assert box.shell(command).output == output


@SHELL
@pytest.mark.spec("R3.1")
def test_longer_output_is_cut_in_the_middle(open_box):
    box = open_box(max_output_length=1000)
    response = box.shell("seq 5000; exit 3")
    assert response.truncated
    assert len(response.output) <= 1000
    assert response.output.startswith("1\n2\n")
    assert response.output.endswith("4999\n5000\n")
    assert (response.exit_code, response.error) == (3, None)


@SHELL
@pytest.mark.spec("R3.1")
def test_bytes_of_output_are_capped_for_both_streams_together(open_box):
    box = open_box(policy=ExecutionPolicy(stdout_max_bytes=1000))
    response = box.shell("seq 1000 >&2; head -c 30000000 /dev/zero | tr '\\0' y")
    assert response.truncated
    assert len(response.output.encode()) <= 1000


@SHELL
@pytest.mark.spec("R3.1")
def test_500_kib_of_output_come_whole(box):
    response = box.shell("head -c 512000 /dev/zero | tr '\\0' x")
    assert response.output == "x" * 512_000
    assert not response.truncated


@SHELL
@pytest.mark.needs(Capability.STREAMING)
def test_lines_are_handed_on_as_they_come(open_box):
    lines, first = [], threading.Event()

    def on_stdout(line):
        lines.append(line)
        if line == "first":
            first.set()

    box = open_box(on_stdout=on_stdout, on_stderr=lambda line: lines.append(f"stderr {line}"))
    command = "echo first; until [ -e go ]; do sleep 0.02; done; echo second >&2; echo -n last"
    worker = threading.Thread(target=lambda: box.shell(command, timeout_ms=1000))
    worker.start()
    assert first.wait(10)
    worker.join()
    assert lines == ["first"]
    box.shell(f"touch go; {command}")
    assert lines == ["first", "first", "second", "last"]


@SHELL
@pytest.mark.needs(Capability.STREAMING)
def test_what_a_callback_raises_is_raised(open_box):
    def on_stdout(line):
        raise KeyError(line)

    box = open_box(on_stdout=on_stdout)
    with pytest.raises(KeyError, match="said"):
        box.shell("echo said")
    assert box.shell("true").exit_code == 0


@SHELL
def test_what_runs_in_the_background_lives_on_and_is_not_waited_for(box):
    response = box.shell("sleep 4321 & echo $!")
    pid = response.output.strip()
    assert (response.exit_code, response.error) == (0, None)
    assert box.shell(f"kill -0 {pid} && echo alive").output == "alive\n"
    assert box.shell("sleep 60", timeout_ms=200).exit_code == 124
    assert box.execute(f"open('/proc/{pid}/comm').read()").value == "sleep\n"


@SHELL
@pytest.mark.needs(Capability.FORK)
def test_a_clone_has_a_shell_in_its_own_files(box):
    box.execute("x = 1; open('both.txt', 'w').close()")
    twin = box.fork()
    try:
        assert twin.shell("touch twin.txt; ls").output == "both.txt\ntwin.txt\n"
        assert box.shell("ls").output == "both.txt\n"
        assert twin.shell("echo partial; sleep 60", timeout_ms=300).exit_code == 124
        assert twin.execute("x").value == 1
    finally:
        twin.destroy()


@SHELL
@pytest.mark.needs(Capability.INTERPRETER)
@pytest.mark.skipif(sys.platform != "linux", reason="the system's Python is looked for on Linux")
def test_python3_is_the_interpreter_that_was_asked_for(open_box):
    box = open_box(python="/usr/bin/python3")
    facts = "import sys; print(sys.version_info[:3], sys.prefix)"
    assert box.shell(f"python3 -c '{facts}'").output == box.execute(facts).stdout


@SHELL
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (5, "a command must be a str or a list, not int"),
        (b"ls", "a command must be a str or a list, not bytes"),
        (None, "a command must be a str or a list, not NoneType"),
        ("", "the command is empty: give one that a shell can run"),
        (" \n\t", "the command is empty: give one that a shell can run"),
        ("echo \0", "the command has a zero byte, which no shell reads: leave it out"),
        ("echo \ud800", "the command cannot be encoded: surrogates not allowed; leave that out"),
        (":" * (MAX_COMMAND_LENGTH + 1), "put it into a file and run that"),
    ],
    ids=["int", "bytes", "none", "empty", "blank", "zero", "surrogate", "long"],
)
def test_what_no_shell_can_run_is_refused(box, command, words):
    with pytest.raises(ConfigError) as refused:
        box.shell(command)
    assert words in str(refused.value)


@SHELL
@pytest.mark.parametrize("timeout_ms", [0, -1, float("nan"), "5"])
def test_a_deadline_that_is_none_is_refused(box, timeout_ms):
    with pytest.raises(ConfigError, match="timeout_ms"):
        box.shell("true", timeout_ms=timeout_ms)


@SHELL
def test_a_closed_sandbox_has_no_shell(open_box):
    box = open_box()
    box.destroy()
    with pytest.raises(atoll.SandboxClosedError):
        box.shell("true")

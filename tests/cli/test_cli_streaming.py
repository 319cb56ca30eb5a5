"""Output as it comes, readers that leave, terminals that are not to be steered, and Ctrl-C."""

import io
import os
import signal
import subprocess
import time

import pytest

from atoll.cli.terminal import streams
from atoll.cli.terminal.streams import TextWriter, harmless


@pytest.mark.spec("R0.16")
def test_a_line_arrives_while_the_code_runs(spawn):
    process = spawn("run", "-c", "import time; print('first'); time.sleep(60)")
    assert process.stdout.readline() == "first\n"
    assert process.poll() is None


@pytest.mark.spec("R0.14")
def test_ctrl_c_cancels_the_cell_and_exits_with_130(spawn):
    code = "import time\ntry:\n    print('go')\n    time.sleep(60)\nfinally:\n    print('tidied')"
    process = spawn("run", "-c", code)
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "tidied\n")
    assert err.endswith("atoll: KeyboardInterrupt: the execution was cancelled\n")


@pytest.mark.spec("R0.2")
def test_a_second_ctrl_c_ends_at_once_and_leaves_nothing_behind(spawn):
    deaf = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2]); print('go')"
    process = spawn("run", "-c", f"{deaf}\nwhile True: pass")
    assert process.stdout.readline() == "go\n"
    started = _descendants(process.pid)
    assert started
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    _wait_until_gone(started)


READS_STDIN = ([b"0", b"0x0"], [b"63", b"0x0"])  # read(0, ...) on x86_64 and aarch64


def test_ctrl_c_before_the_cell_runs_exits_with_130(spawn):
    process = spawn("run", "-")  # it waits for its code
    while _read(f"/proc/{process.pid}/syscall").split()[:2] not in READS_STDIN:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130


def test_a_reader_that_leaves_ends_the_program(command):
    code = "while True: print('x')"
    process = subprocess.Popen(
        [*command, "run", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.read(2) == b"x\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_a_reader_of_json_that_leaves_is_no_traceback(command):
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [*command, "run", "--json", "-c", "1"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (141, b"")


def test_a_full_disk_is_said(command):
    with open("/dev/full", "w") as full:
        argv = [*command, "run", "-c", "print(1)"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "atoll: cannot write the output: No space left on device\n"


def test_lines_of_both_streams_do_not_run_together_in_one_file(command):
    code = "import sys\nfor n in range(3): print('o', n, file=(sys.stdout, sys.stderr)[n % 2])"
    argv = [*command, "run", "-c", code]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert sorted(done.stdout.splitlines()) == ["o 0", "o 1", "o 2"]


def test_output_that_the_encoding_lacks_is_escaped(command):
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    argv = [*command, "run", "-c", "print('ä')"]
    done = subprocess.run(argv, capture_output=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (0, b"\\xe4\n")


async def test_text_is_written_as_it_came():
    stream = io.StringIO()
    writer = TextWriter(stream, lambda _error: None)
    writer.write("name? ")
    assert stream.getvalue() == "name? "
    assert writer.finish(newline=False)
    writer.write("b")
    assert writer.finish(newline=True)
    assert stream.getvalue() == "name? b\n"


async def test_a_colour_may_come_in_two_pieces():
    stream = io.StringIO()
    stream.isatty = lambda: True
    writer = TextWriter(stream, lambda _error: None)
    for piece in ("\x1b", "[3", "1mred\x1b[0m", "\x1b", "]0;title\x07", "\x1b[2"):
        writer.write(piece)
    assert "\\x1b[2" not in stream.getvalue()
    writer.finish(newline=True)
    assert stream.getvalue() == "\x1b[31mred\x1b[0m\\x1b]0;title\x07\\x1b[2\n"


async def test_text_beyond_the_limit_is_not_written(monkeypatch):
    monkeypatch.setattr(streams, "STREAM_LIMIT", 4)
    stream = io.StringIO()
    writer = TextWriter(stream, lambda _error: None)
    writer.write("abc")
    writer.write("de")
    assert not writer.finish(newline=True)
    assert stream.getvalue() == "abcd\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b]52;c;UFdORUQ=\x07", "\\x1b]52;c;UFdORUQ=\x07"),
        ("\x1b[2J\x9b1A\x00", "\\x1b[2J\\x9b1A\\x00"),
        ("50 %\r\tä\b", "50 %\r\tä\b"),
    ],
)
def test_a_guest_may_colour_a_terminal_but_not_steer_it(text, shown):
    assert harmless(text) == shown


def _descendants(pid: int) -> list[int]:
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in _read(f"/proc/{pid}/task/{task}/children").split():
            found += [int(child), *_descendants(int(child))]
    return found


def _wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        while _read(f"/proc/{pid}/stat") and b") Z " not in _read(f"/proc/{pid}/stat"):
            time.sleep(0.01)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""

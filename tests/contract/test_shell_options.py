"""box.shell with a program and its arguments, a folder, an environment, stdin, stderr apart."""

from __future__ import annotations

import pytest

import atoll
from atoll import Capability, ConfigError
from atoll.sandbox.command import MAX_STDIN

pytestmark = pytest.mark.needs(Capability.SHELL)


def test_a_list_is_a_program_with_its_arguments_and_no_shell(box):
    arguments = ["two words", "$HOME", "; echo no", "*", "", "ä😀", "a'b\"c"]
    done = box.shell(["printf", "<%s>\\n", *arguments])
    assert done.output.splitlines() == [f"<{one}>" for one in arguments]
    assert (done.exit_code, done.error) == (0, None)


def test_a_program_that_cannot_be_run_has_the_exit_codes_of_shells(box):
    missing = box.shell(["no-such-program"])
    assert (missing.exit_code, missing.output) == (127, "")
    assert "no-such-program" in missing.error
    assert box.shell(["/etc/passwd"]).exit_code == 126
    assert box.shell(["false"]).exit_code == 1
    assert box.shell("pwd", cwd="/no/such/folder").exit_code == 127


def test_a_command_runs_in_the_folder_and_environment_that_are_given(box):
    box.shell("mkdir -p sub/deeper")
    assert box.shell("pwd", cwd="sub/deeper").output == "/app/sub/deeper\n"
    assert box.shell(["pwd"], cwd="/tmp").output == "/tmp\n"
    done = box.shell('echo "$COLOUR"; pwd', env={"COLOUR": "deep\nblue"})
    assert done.output == "deep\nblue\n/app\n"
    assert box.shell('echo "$COLOUR"').output == "\n"
    assert box.execute("import os; os.getcwd(), os.environ.get('COLOUR')").value == ("/app", None)


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
def test_stdin_is_read_to_its_end(box, size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert box.shell("wc -c", stdin=data).output.strip() == str(size)
    assert box.shell(["cat"], stdin="grüße\n").output == "grüße\n"
    assert box.shell(["cat"]).output == ""


def test_stdout_and_stderr_come_apart(open_box):
    lines = []
    box = open_box(on_stdout=lines.append, on_stderr=lambda line: lines.append(f"! {line}"))
    done = box.shell("echo one; echo two >&2; echo three", merge_stderr=False)
    assert (done.stdout, done.stderr) == ("one\nthree\n", "two\n")
    assert done.output == "one\nthree\ntwo\n"
    assert sorted(lines) == ["! two", "one", "three"]
    together = box.shell("echo one; echo two >&2")
    assert (together.stdout, together.stderr) == ("one\ntwo\n", "")


def test_stderr_that_is_apart_has_a_limit_of_its_own(open_box):
    box = open_box(max_output_length=1_000)
    done = box.shell("yes | head -c 5000; echo short >&2", merge_stderr=False)
    assert (done.truncated, done.stderr) == (True, "short\n")
    assert len(done.stdout) < 1_200


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ([], {}, "1 to 10,000 arguments"),
        (["a", 1], {}, "an argument must be a str"),
        (["a\0"], {}, "an argument must be a str without zero bytes"),
        ([""], {}, "empty name"),
        (b"ls", {}, "a str or a list"),
        ("ls", {"cwd": 3}, "cwd must be a str"),
        ("ls", {"env": {"A=B": "c"}}, "not the name of an environment variable"),
        ("ls", {"env": {"A": 1}}, r"env\['A'\] must be a str"),
        ("ls", {"env": ["A"]}, "env must map names to texts"),
        ("ls", {"stdin": 5}, "stdin must be a str or bytes"),
        ("ls", {"stdin": b"x" * (MAX_STDIN + 1)}, "put it into a file"),
        ("ls", {"stdin": "\ud800"}, "stdin is a text that has no bytes"),
        (
            "ls",
            {"timeout_seconds": 1},
            "unknown option of shell 'timeout_seconds': did you mean 'timeout_ms'?",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_it_is_sent(box, command, options, message):
    with pytest.raises(ConfigError, match=message):
        box.shell(command, **options)


def test_a_program_that_is_stopped_is_killed_with_what_it_started(box):
    done = box.shell(["sh", "-c", "sleep 100 & echo begun; wait"], timeout_ms=400)
    assert (done.output, done.exit_code) == ("begun\n", 124)
    gone = "while cat /proc/[0-9]*/comm | grep -qx sleep; do :; done"  # the kernel takes a moment
    assert box.shell(gone, timeout_ms=20_000).exit_code == 0


async def test_options_are_there_for_async_callers(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        done = await box.shell(["cat"], stdin=b"in", merge_stderr=False)
        assert done == atoll.ExecuteResponse(output="in", exit_code=0)

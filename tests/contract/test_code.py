"""Validation without running, the working folder's delta, logging, and bad code."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import atoll
from atoll import Capability
from atoll.log import SandboxLogger


@pytest.mark.spec("R1.6")
@pytest.mark.parametrize(
    ("code", "valid"),
    [
        ("x = 1 + 2", True),
        ("x = 1 +", False),
        ("", True),
        ("x = '\0'", False),
        ("x = '\ud800'", False),
        ("return 1", False),
    ],
)
def test_validation_compiles_only(box, code, valid):
    assert box.validate_code(code) is valid


@pytest.mark.spec("R1.6")
def test_validation_runs_nothing(box):
    assert box.validate_code("ran = True\nimport os\nos._exit(1)")
    assert box.get_variable("ran", "no") == "no"


@pytest.mark.spec("R1.7")
@pytest.mark.needs(Capability.FILES)
def test_created_and_modified_files_are_listed(box):
    assert box.execute("import time\ntime.sleep(0.06)").files == ()  # known to be empty from now on
    first = box.execute(
        "import os\nopen('/app/out.txt', 'w').write('data')\nos.makedirs('sub/deep')\n"
        "open('sub/deep/table.csv', 'w').write('a,b')\nopen('user_code.py', 'w').close()\n"
        "os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')"
    )
    assert first.files_created == ("out.txt", "sub/deep/table.csv")
    assert first.files_modified == ()
    assert first.artifacts[1] == atoll.Artifact(
        path="sub/deep/table.csv", size=3, media_type="text/csv"
    )
    second = box.execute("open('out.txt', 'a').write('more'); open('/mnt/data/new', 'w').close()")
    assert (second.files_created, second.files_modified) == (("new",), ("out.txt",))
    assert second.files == ("new", "out.txt")
    assert box.execute("1").files == ()


@pytest.mark.spec("R1.7")
@pytest.mark.needs(Capability.HOST_FOLDER)
def test_a_host_folder_is_the_working_folder(open_box, tmp_path):
    (tmp_path / "input.txt").write_text("from the host")
    box = open_box(workspace=tmp_path)
    result = box.execute(
        "text = open('input.txt').read(); open('output.txt', 'w').write(text.upper())"
    )
    assert result.error is None
    assert (tmp_path / "output.txt").read_text() == "FROM THE HOST"
    assert (tmp_path / "output.txt").stat().st_uid == tmp_path.stat().st_uid
    assert result.files_created == ("output.txt",)
    assert result.workspace_path == str(tmp_path)
    (tmp_path / "later.txt").write_text("between cells")
    assert box.execute("open('later.txt').read()").files == ()


class Recording:
    """A logger of the caller's own, which has no more than the three methods that one must have."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def log_execution_start(self, runtime, policy, code=""):
        self.calls.append(("start", runtime, policy.memory_bytes, code))

    def log_execution_complete(self, result):
        self.calls.append(("complete", result.kind))

    def log_security_event(self, event_type, **details):
        self.calls.append(("security", event_type))


@pytest.mark.spec("R1.13")
def test_a_logger_of_the_callers_own_is_called_around_each_execution(open_box):
    logger = Recording()
    box = open_box(logger=logger)
    box.execute("1")
    box.execute("while True: pass", timeout_ms=300)
    limit = box.inner.policy.memory_bytes
    assert logger.calls == [
        ("start", "python", limit, "1"),
        ("complete", "ok"),
        ("start", "python", limit, "while True: pass"),
        ("security", "timeout"),
        ("complete", "timeout"),
    ]


@pytest.mark.spec("R1.13")
def test_events_of_an_execution(open_box):
    events = []
    box = open_box(logger=SandboxLogger(events.append))
    box.execute("secret = 'in the code'\nprint(secret)")
    named = {event.name: event for event in events}
    assert named["execution_start"].fields["runtime"] == "python"
    assert (
        named["execution_start"].fields["policy"]["memory_bytes"] == box.inner.policy.memory_bytes
    )
    complete = named["execution_complete"].fields
    assert complete["success"] is True
    assert complete["duration_ms"] > 0
    assert "fuel_consumed" in complete
    shown = [event for event in events if event.level > logging.DEBUG]
    assert "in the code" not in str(shown)


@pytest.mark.spec("R1.13")
def test_a_timeout_is_a_security_event(open_box):
    events = []
    box = open_box(logger=SandboxLogger(events.append))
    box.execute("while True: pass", timeout_ms=200)
    assert [e.fields["type"] for e in events if e.name == "security"] == ["timeout"]


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        ("x = '\0'", ("ValueError", "SyntaxError")),
        ("x = '\ud800'", ("UnicodeEncodeError",)),
        ("(" * 5000, ("SyntaxError", "MemoryError")),
    ],
    ids=["nul", "surrogate", "nested"],
)
def test_strange_code_is_an_error_and_no_end(box, code, error_type):
    result = box.execute(code)
    assert result.error_type in error_type
    assert box.execute("1").value == 1


def test_code_that_is_no_text_is_refused(box):
    with pytest.raises(atoll.ConfigError, match="code must be a str, not bytes"):
        box.execute(b"1")


@pytest.mark.parametrize("timeout", [0, -5, float("nan"), "10", True])
def test_a_bad_timeout_is_refused(box, timeout):
    with pytest.raises(atoll.ConfigError, match="timeout_ms"):
        box.execute("1", timeout_ms=timeout)


@pytest.mark.needs(Capability.IMPORTS)
@pytest.mark.parametrize("end", ["os._exit(0)", "os._exit(7)"])
def test_a_process_that_ends_itself_is_no_success(box, end):
    result = box.execute(f"import os\nprint('partial', flush=True)\n{end}")
    assert (result.kind, result.success, result.state_lost) == ("exited", False, True)
    assert result.stdout == "partial\n"
    assert "ended itself with exit code" in result.error
    assert box.execute("1").value == 1


@pytest.mark.needs(Capability.SUBPROCESS)
@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM")])
def test_a_process_ended_by_a_signal_is_a_crash(box, number, name):
    result = box.execute(f"import os; os.kill(os.getpid(), {number})")
    assert (result.kind, result.exit_code, result.state_lost) == ("crashed", 128 + number, True)
    assert name in result.error
    assert box.execute("1").value == 1


@pytest.mark.parametrize(
    ("code", "exit_code", "error_type"),
    [
        ("class Stop(SystemExit): pass\nraise Stop(3)", 3, "Stop"),
        ("class Stop(SystemExit): pass\nraise Stop", 0, "Stop"),
        ("class Stop(SystemExit): pass\nraise Stop('why')", 1, "Stop"),
        ("raise SystemExit(ValueError('why'))", 1, "SystemExit"),
    ],
)
def test_a_system_exit_of_any_class_ends_the_cell_as_it_ends_a_script(
    box, code, exit_code, error_type
):
    result = box.execute(code)
    assert (result.kind, result.exit_code) == ("exited", exit_code)
    assert result.error_type == error_type
    assert result.stderr == ("why\n" if "why" in code else "")


def test_the_caret_is_right_in_a_last_line_without_a_newline(box):
    lines = box.execute("zero = 0\n111 / zero").stderr.splitlines()
    assert "    111 / zero" in lines
    assert "    ~~~~^~~~~~" in lines


@pytest.mark.needs(Capability.IMPORTS)
def test_inspect_finds_the_source_of_functions_and_classes(box):
    box.execute("class Plain:\n    x = 1\n")
    box.execute("class Deep(Plain):\n    def method(self): return 1\n\ndef function(): return 2\n")
    code = "import inspect\n[inspect.getsource(one) for one in (Plain, Deep, function)]"
    plain, deep, function = box.execute(code).value
    assert plain == "class Plain:\n    x = 1\n"
    assert deep == "class Deep(Plain):\n    def method(self): return 1\n"
    assert function == "def function(): return 2\n"


def test_a_result_has_the_arguments_of_the_exception(box):
    result = box.execute("raise ValueError('wrong', 7, {'a': (1, 2)})")
    assert result.error_args == ("wrong", 7, {"a": (1, 2)})
    assert box.execute("raise KeyError").error_args == ()
    assert box.execute("1").error_args == ()
    opaque = box.execute("class Thing: pass\nraise ValueError('about', Thing())").error_args[1]
    assert (type(opaque).__name__, opaque.type_name) == ("Opaque", "Thing")


def test_arguments_and_messages_that_are_too_long_are_marked(box):
    result = box.execute("raise ValueError('x' * 12_000, 'y' * 5_000_000)")
    short, long = result.error_args
    assert short == "x" * 12_000
    assert "too large" in long.reason
    assert box.execute("raise ValueError('x' * 12_000)").error.endswith(
        "x... [2,000 more characters]"
    )
    assert len(box.execute("raise ValueError(*range(100))").error_args) == 20


def test_a_keyword_that_execute_does_not_take_is_an_error_that_names_the_one_meant(box):
    message = r"^unknown option of execute 'timeout_seconds': did you mean 'timeout_ms'\?$"
    with pytest.raises(atoll.ConfigError, match=message):
        box.execute("1", timeout_seconds=5)
    with pytest.raises(atoll.ConfigError, match=message):
        box.portal.run(box.inner.execute("1", timeout_seconds=5))

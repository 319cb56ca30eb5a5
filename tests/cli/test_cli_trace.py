"""`atoll trace`: prints a trajectory, or makes a page of it."""

import json
import os
import pty
import stat
import subprocess
from pathlib import Path

import pytest

from atoll.agent.trajectory import (
    CodeRan,
    FinalGiven,
    ModelAnswered,
    ModelAsked,
    RunStarted,
    TrajectoryWriter,
)


@pytest.fixture
def trajectory(tmp_path):
    path = tmp_path / "run.jsonl"
    with TrajectoryWriter(path) as writer:
        writer.emit(RunStarted(question="How many whales?", model="m"))
        code = "\n".join(f"line_{number} = {number}" for number in range(30))
        writer.emit(CodeRan(turn=1, code=code, observation="\x1b[2J<b>3</b>"))
        writer.emit(FinalGiven(how="FINAL", text="Three."))
    return str(path)


def test_it_is_printed_as_a_tree(atoll, trajectory):
    code, out, err = atoll("trace", "show", trajectory)
    assert (code, err) == (0, "")
    assert out.startswith("question  How many whales?\n")
    assert "  > line_0 = 0\n" in out
    assert "  > … 22 more lines\n" in out
    assert "  │ \\x1b[2J<b>3</b>\n" in out
    assert "  ┃ Three.\n" in out
    assert "\x1b" not in out


def test_full_prints_all_of_it(atoll, trajectory):
    assert "  > line_29 = 29\n" in atoll("trace", "show", "--full", trajectory)[1]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_it_fits_the_terminal(atoll, trajectory, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = atoll("trace", "show", trajectory)[1]
    assert max(map(len, out.splitlines())) <= columns


def on_a_terminal(command, *argv, **environment) -> str:
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, *argv], stdout=theirs, stderr=theirs, env={**os.environ, **environment}
    ):
        os.close(theirs)
        parts = []
        try:
            while part := os.read(mine, 1 << 16):
                parts.append(part)
        except OSError:  # the other end has been closed
            pass
        os.close(mine)
    return b"".join(parts).decode()


def test_colours_are_for_terminals_that_want_them(command, trajectory):
    show = ("trace", "show", trajectory)
    assert "\x1b[1mquestion\x1b[0m" in on_a_terminal(command, *show, NO_COLOR="")
    assert "\x1b" not in on_a_terminal(command, *show, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(command, *show, "--no-color", NO_COLOR="")


def test_a_terminal_without_such_characters_shows_others(command, trajectory):
    done = subprocess.run(
        [*command, "trace", "show", trajectory],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "  ? Three." in done.stdout


def test_a_page_is_written_beside_the_trajectory_and_as_private(atoll, trajectory):
    code, out, err = atoll("trace", "html", trajectory)
    target = trajectory.removesuffix(".jsonl") + ".html"
    assert (code, out, err) == (0, f"{target}\n", "")
    assert stat.S_IMODE(os.stat(target).st_mode) == 0o600
    assert "&lt;b&gt;3&lt;/b&gt;" in Path(target).read_text("utf-8")


def test_a_page_may_go_to_stdout_or_elsewhere(atoll, trajectory, tmp_path):
    printed = atoll("trace", "html", trajectory, "-o", "-")[1]
    assert atoll("trace", "html", trajectory, "-o", str(tmp_path / "x.html"))[0] == 0
    assert (tmp_path / "x.html").read_text() == printed
    assert printed.startswith("<!doctype html>")


@pytest.mark.parametrize("action", ["html", "export"])
def test_the_trajectory_is_never_overwritten(atoll, tmp_path, action):
    path = tmp_path / "run.jsonl"
    with TrajectoryWriter(path) as writer:
        said = ({"role": "user", "content": "How many?"},)
        writer.emit(ModelAsked(call="c1", model="m", messages=said))
        writer.emit(ModelAnswered(call="c1", text="Three."))
    before = path.read_text()
    code, _, err = atoll("trace", action, str(path), "-o", str(path))
    assert (code, err) == (
        2,
        f"atoll: '{path}' is the record itself: name another file with -o\n",
    )
    assert path.read_text() == before


def test_a_file_that_is_not_there_is_one_line_of_error(atoll, tmp_path):
    code, out, err = atoll("trace", "show", str(tmp_path / "no.jsonl"))
    assert (code, out) == (2, "")
    assert err.startswith("atoll: cannot read the record ")
    assert err.count("\n") == 1


def test_a_page_that_cannot_be_written_is_one_line_of_error(atoll, trajectory, tmp_path):
    code, _, err = atoll("trace", "html", trajectory, "-o", str(tmp_path / "no" / "x.html"))
    assert code == 2
    assert err.startswith("atoll: cannot write ")


def test_a_reader_that_leaves_early_is_no_error(command, trajectory):
    done = subprocess.run(
        f"'{command[0]}' -m atoll.cli.main trace show {trajectory} | head -1",
        shell=True, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("question  How many whales?\n", "")


def test_conversations_are_exported_as_rows_of_messages(atoll, trajectory, tmp_path):
    code, out, err = atoll("trace", "export", trajectory)
    assert (code, out) == (2, "")
    assert "there is no conversation with a model" in err
    path = tmp_path / "asked.jsonl"
    with TrajectoryWriter(path) as writer:
        said = ({"role": "user", "content": "How many?"},)
        writer.emit(ModelAsked(call="c1", model="m", messages=said))
        writer.emit(ModelAnswered(call="c1", text="Three."))
    code, out, err = atoll("trace", "export", "--format", "openai-messages", str(path))
    assert (code, err) == (0, "")
    assert json.loads(out)["messages"] == [*said, {"role": "assistant", "content": "Three."}]
    target = tmp_path / "out.jsonl"
    assert atoll("trace", "export", str(path), "-o", str(target))[:2] == (0, f"{target}\n")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == (out, 0o600)

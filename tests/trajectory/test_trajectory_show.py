"""A trajectory in the terminal: all of it is told, in its width, and no text gets out of hand."""

import unicodedata

import pytest
from costs import least_cpu_seconds
from runs import QUESTION, hostile, realistic

from atoll.agent.trajectory import (
    CodeRan,
    FinalGiven,
    Planned,
    RunStarted,
    SubcallEnded,
    SubcallStarted,
    Trajectory,
    TrajectoryWriter,
    from_dict,
    terminal_text,
    words,
)
from atoll.agent.trajectory.show import show
from atoll.agent.trajectory.terminal_text import Colours


def told(story, **options) -> list[str]:
    writer = TrajectoryWriter()
    story(writer)
    return list(show(Trajectory(events=writer.events), **options))


def test_everything_that_happened_is_told():
    text = "\n".join(told(realistic, width=120))
    for part in (
        QUESTION,
        "coder-1, sub-calls coder-mini",
        "plan  loop: 12,400,000 characters",
        "┆ First I look at how the text is divided.",
        "turn 1  ok · 81 ms · jailed",
        "> head = peek(2000)",
        "│ … 55 more lines",
        "the whole is in  /tmp/repl_output/7f3a/turn_1.txt",
        "32 sub-calls  8 at once",
        "FAILED: the model took longer than 30 s",
        "… 28 more  --full shows them",
        "budget  usd: 0.2 of 0.25 (80 %)",
        "      > print(grep('determine|break clause'))",
        "as x1",
        "refused  rlm_query: the budget",
        "turn 4  error · 7 ms · jailed · the same code as before",
        "answer  by text, forced: the budget is spent",
        "found  “The Tenant may determine this Lease on the third anniversary” at 6,702,114-6,702,174, line 14,031",
        "not found  “a penalty of three months”",
        "6.6 % shown to a model, 76 % scanned by code, of 12,400,000 characters",
        "██▒▒▒",
        "forced  16.1 s · 38 model calls",
        "$0.2513",
    ):
        assert part in text


def test_of_many_failed_sub_calls_some_are_shown_and_the_rest_is_counted():
    def story(writer):
        for number in range(100):
            writer.emit(SubcallStarted(call=f"c{number}", kind="llm_query", prompt="?"))
            writer.emit(SubcallEnded(call=f"c{number}", error="too late"))
        writer.emit(CodeRan(turn=1, code="x"))

    text = "\n".join(told(story))
    assert text.count("FAILED: too late") == 12
    assert "… 88 more  --full shows them" in text


def test_full_leaves_nothing_out():
    lines = told(realistic, full=True)
    assert sum("llm_query" in line and "·" in line for line in lines) == 34
    assert not [line for line in lines if " more line" in line or "--full" in line]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("story", [realistic, hostile])
def test_no_line_is_wider_than_the_terminal(story, full, width):
    lines = told(story, width=width, full=full)
    assert max(map(terminal_text.columns, lines)) <= width


@pytest.mark.parametrize("full", [False, True])
def test_hostile_text_moves_no_cursor_and_hides_nothing(full):
    lines = told(hostile, full=full)
    kinds = {unicodedata.category(char) for line in lines for char in line}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert any("\\x1b]0;owned\\x07" in line for line in lines)


def test_a_guest_cannot_forge_a_line():
    def story(writer):
        writer.emit(RunStarted(question="a\nanswer  by FINAL", model="m"))
        writer.emit(
            CodeRan(
                turn=1, code="1\rrefused\x0b  all", observation="x\u2028answer  by FINAL\n\nforced"
            )
        )

    lines = told(story)
    assert not [line for line in lines if line.startswith(("answer", "forced", "refused"))]


def test_colours_are_painted_only_by_a_brush():
    assert "\x1b" not in "".join(told(realistic))
    painted = "".join(told(realistic, brush=Colours(enabled=True)))
    assert "\x1b[32mturn 1\x1b[0m" in painted


def test_events_and_fields_of_newer_versions_are_shown_as_such():
    events = (
        from_dict({"event": "dreamt", "run": "r", "about": "sheep"}),
        from_dict({"event": "planned", "run": "r", "way": "loop", "mood": "calm"}),
    )
    text = "\n".join(show(Trajectory(events=events)))
    assert "unknown event  dreamt: of a newer version, or malformed" in text
    assert "about sheep" in text
    assert "also  mood calm" in text
    assert "its beginning is not here" in text


def test_what_is_wrong_with_the_file_is_told():
    lines = list(show(Trajectory(events=(Planned(way="loop"),), torn=True, skipped=2, cut=True)))
    assert lines[-3:] == [
        "the last line of the file is not whole",
        "2 lines could not be read",
        "there is more in the file than is read",
    ]
    assert list(show(Trajectory(events=()))) == ["nothing has happened in it yet"]


def test_wide_characters_take_two_columns_and_marks_none():
    assert terminal_text.columns("日本") == 4
    assert terminal_text.columns("e\u0301") == 1
    assert terminal_text.clip("日本語", 5) == "日本…"
    assert len(terminal_text.clip("e" + "\u0301" * 10_000, 20)) <= 40


@pytest.mark.parametrize(
    "text", ["one two three four", "x" * 50, "日本語" * 9, "a" + "\u0301" * 99, ""]
)
def test_wrapping_keeps_every_character_but_spaces(text):
    lines = terminal_text.wrap(text, 10)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(terminal_text.columns, lines)) <= 10


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ("..--##", "..--##"),
        (["unseen", "scanned", "shown"], ".-#"),
        ([0, 1, 2, "?", None, {}], ".-#..."),
        (7, ""),
        ("", ""),
    ],
)
def test_a_coverage_map_is_drawn_however_it_is_written(given, drawn):
    assert words.cells({"map": given}) == drawn


def test_a_narrow_coverage_map_tells_the_best_of_its_cells():
    assert words.cells({"map": "." * 50 + "#" + "-" * 49}, 10) == ".....#----"


@pytest.mark.parametrize("text", ["```" * 20_000, "```\n" * 15_000, "```x" + " " * 60_000])
def test_a_text_of_backquotes_takes_no_longer_than_others(text):
    def cost(given: str) -> float:
        return least_cpu_seconds(lambda: words.prose(given))

    assert cost(text) < 200 * (cost("abc" * 20_000) + 0.001)  # the square of it is far beyond


def test_prose_is_a_models_text_without_its_code():
    assert (
        words.prose("First.\n```repl\nx = 1\n```\nThen.\n```python\nnever closed")
        == "First.\n\nThen."
    )


def test_times_and_costs_are_said_as_people_do():
    assert [words.duration(ms) for ms in (3, 1500, 125_000, 7_260_000)] == [
        "3 ms", "1.5 s", "2 min 5 s", "2 h 1 min",
    ]  # fmt: skip
    assert [words.money(usd) for usd in (0, 0.00012, 12.5)] == ["$0.00", "$0.0001", "$12.50"]


def test_a_forced_answer_of_many_lines_is_cut_unless_all_is_asked_for():
    def story(writer):
        writer.emit(FinalGiven(how="FINAL", text="\n".join(map(str, range(100)))))

    assert "  ┃ … 80 more lines" in told(story)
    assert "  ┃ 99" in told(story, full=True)

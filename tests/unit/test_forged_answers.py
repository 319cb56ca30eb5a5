"""Every field of a guest's answer, forged in every bad way: none becomes a field of a result."""

from __future__ import annotations

import math

import pytest

from atoll.guest.cells.delta import MAX_FILES
from atoll.guest.cells.repl import VALUE_BYTES, VALUE_ITEMS
from atoll.sandbox import result_fields
from atoll.types import Artifact, Outcome

OK = {"kind": "ok", "exit_code": 0, "files": {"created": [], "modified": []}}
FAILED = {**OK, "kind": "error", "exit_code": 1, "error": "E: x", "error_type": "E"}
NO_NUMBER = [None, "0", b"0", True, 0.0, 1.5, math.nan, math.inf, -math.inf, [], {}, [0]]
NO_TEXT = [5, True, 1.5, math.nan, b"x", ["x"], {"x": 1}]
OUTSIDE = [
    "/etc/passwd", "../../root/.ssh/id_rsa", "..", ".", "", "/", "//x", "a/../b", "a/./b", "./a",
    "a//b", "a/", "a/..", "../x", "a\0b", "x" * 5000,
]  # fmt: skip
NO_LIST = [None, 5, "ab", {"a": 1}, [5], ["ab c"], [[]], [["a"]], [["a", 1, 2]], [None]]


def answers(**fields):
    """One forged answer for each bad value of each field."""
    for name, bad in fields.items():
        for value in bad:
            yield pytest.param(name, value, id=f"{name}={value!r:.30}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *answers(kind=[None, 5, "", "OK", "timeout", "memory", "cancelled", "refused", [], {}]),
        *answers(exit_code=[*NO_NUMBER, -1, 256, 1, 1 << 70]),
        *answers(error=["an error of no outcome", *NO_TEXT]),
        *answers(value_repr=[*NO_TEXT, "x" * 20_000]),
        *answers(displays=[5, "x", {"a": 1}, [5], [["text/html"]], [["text/x-evil", ""]]]),
        *answers(displays=[[["text/html", "not base64!"]], [["text/html", 5]], [None] * 1000]),
        *answers(files=[None, 5, [], "x", {}, {"created": []}, {"created": [], "modified": 5}]),
    ],
)
def test_a_forged_field_is_no_result(name, value):
    with pytest.raises(result_fields.SHAPE_ERRORS):
        result_fields.read_cell({**OK, name: value})


def nested(depth):
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "value",
    [
        nested(120),
        [0] * (VALUE_ITEMS + 1),
        "x" * (VALUE_BYTES + 1),
        {"$": "tuple", "v": nested(101)},
    ],
    ids=["deep", "many", "long", "deep in a tag"],
)
def test_a_value_that_no_guest_sends_is_no_result(value):
    """The daemon could not pass it on: a forged answer would be an error of the daemon."""
    with pytest.raises(ValueError, match=r"nested deeper|more than"):
        result_fields.read_cell({**OK, "value_repr": "x", "value": value})
    with pytest.raises(ValueError, match=r"nested deeper|more than"):
        result_fields.read_cell({**FAILED, "error_args": [value]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *answers(error=[None, *NO_TEXT, "x" * 20_000]),
        *answers(error_type=[None, *NO_TEXT, "x" * 300]),
        *answers(exit_code=[0, *NO_NUMBER, -1, 256]),
        *answers(kind=["ok"]),
    ],
)
def test_a_forged_field_of_an_error_is_no_result(name, value):
    with pytest.raises(result_fields.SHAPE_ERRORS):
        result_fields.read_cell({**FAILED, name: value})


@pytest.mark.parametrize("change", ["created", "modified"])
@pytest.mark.parametrize(
    "rows",
    [
        *([[path, 1]] for path in OUTSIDE),
        *([["a.txt", size]] for size in [*NO_NUMBER, -1, 1 << 63]),
        *([[path, 1]] for path in NO_TEXT),
        [["a", 1], ["a", 1]],
        [[f"f{n}", 1] for n in range(2 * MAX_FILES + 1)],
        *(bad for bad in NO_LIST if bad is not None),
    ],
    ids=lambda rows: repr(rows)[:30],
)
def test_a_forged_file_is_no_result(change, rows):
    files = {"created": [], "modified": [], change: rows}
    with pytest.raises(result_fields.SHAPE_ERRORS):
        result_fields.read_cell({**OK, "files": files})


def test_a_file_cannot_be_created_and_modified():
    files = {"created": [["a", 1]], "modified": [["a", 1]]}
    with pytest.raises(result_fields.SHAPE_ERRORS):
        result_fields.read_cell({**OK, "files": files})


@pytest.mark.parametrize("path", ["a", "a/b.csv", "..a", "a..b", "...", "-", " ", "a b", "é\udc80"])
def test_a_file_of_an_odd_name_is_reported(path):
    files = {"created": [[path, 7]], "modified": []}
    fields = result_fields.read_cell({**OK, "files": files})
    assert fields["files_created"] == (path,)
    (artifact,) = fields["artifacts"]
    assert isinstance(artifact, Artifact)
    assert (artifact.path, artifact.size) == (path, 7)


@pytest.mark.parametrize(
    "claim",
    [{name: bad} for name in ("duration_ms", "cpu_ms", "memory_bytes", "memory_used_bytes", "stdout",
                              "state_lost", "isolation", "state", "fuel_consumed", "artifacts")
     for bad in ("nan", math.inf, -1, 1 << 60)],
)  # fmt: skip
def test_what_the_host_knows_itself_is_not_taken_from_an_answer(claim):
    assert result_fields.read_cell({**OK, **claim}) == result_fields.read_cell(OK)


@pytest.mark.parametrize("name", ["error", "error_type"])
def test_lone_surrogates_of_a_text_are_escaped(name):
    fields = result_fields.read_cell({**FAILED, name: "E: \ud800 \udcff é"})
    assert fields[name] == "E: \\ud800 \\udcff é"
    shown = result_fields.read_cell({**OK, "value_repr": "'\ud800'", "value": "\ud800"})
    assert shown["value_repr"] == "'\\ud800'"
    command = result_fields.read_shell({"error": "\ud800", "exit_code": 1})
    assert command["error"].encode()


def test_honest_answers_are_read():
    assert result_fields.read_cell(OK)["kind"] is Outcome.OK
    assert result_fields.read_cell(FAILED)["error"] == "E: x"
    left = {**FAILED, "kind": "exited", "exit_code": 3}
    assert result_fields.read_cell(left)["exit_code"] == 3
    assert result_fields.read_cell({**OK, "kind": "exited"})["error"] is None
    stopped = {**FAILED, "kind": "interrupted"}
    assert result_fields.read_cell(stopped)["kind"] is Outcome.CANCELLED
    shown = result_fields.read_cell({**OK, "value_repr": "2", "value": 2})
    assert (shown["value"], shown["value_repr"]) == (2, "2")

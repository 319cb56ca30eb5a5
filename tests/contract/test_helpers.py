"""The helpers that guest code finds by name, the same in every backend."""

from __future__ import annotations

import pytest
from sharing import SHARED, shared_boxes

TEXT = "# One\nalpha E12\n## Two\nbeta E7\n\n# Three\ngamma\n"


@pytest.fixture
def reader(backend, open_box):
    if backend not in SHARED:
        yield open_box(context=TEXT)
        return
    with shared_boxes.lend(backend, TEXT) as shared:
        yield shared


@pytest.mark.spec("R0.10")
@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("chunk_text('abcdefgh', 4, 1)", ["abcd", "defg", "gh"]),
        ("chunk_text('abcdefgh', 4)", ["abcd", "efgh"]),
        ("chunk_text('abc', 10, 2)", ["abc"]),
        ("chunk_text('', 5, 1)", []),
        ("chunk_by_size('aaa\\nbbb\\nccc', 6)", ["aaa\n", "bbb\n", "ccc"]),
        ("''.join(chunk_by_size('x' * 1000, 64)) == 'x' * 1000", True),
    ],
)
def test_chunks(box, call, value):
    assert box.execute(call).value == value


@pytest.mark.spec("R0.10")
@pytest.mark.parametrize("args", ["0, 0", "-1, 0", "4, 4", "4, 5", "4, -1"])
def test_bad_chunking_is_a_value_error(box, args):
    assert box.execute(f"chunk_text('abc', {args})").error_type == "ValueError"


@pytest.mark.spec("R0.11")
def test_search_context_gives_offsets_lines_and_surroundings(reader):
    hits = reader.execute("search_context(r'E\\d+', 3)").value
    assert hits == [
        {"match": "E12", "start": 12, "end": 15, "line": 2, "text": "ha E12\n##"},
        {"match": "E7", "start": 28, "end": 30, "line": 4, "text": "ta E7\n\n#"},
    ]
    assert all(TEXT[hit["start"] : hit["end"]] == hit["match"] for hit in hits)


@pytest.mark.spec("R0.11")
def test_a_bad_pattern_says_what_to_do(reader):
    error = reader.execute("search_context('(')").error
    assert error.startswith("ValueError: bad pattern '('")
    assert "re.escape" in error


@pytest.mark.spec("R0.11")
def test_searching_without_a_context_says_so(box):
    assert "there is no context" in box.execute("search_context('x')").error


@pytest.mark.spec("R0.11")
@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("find_line(r'E\\d')", [(2, "alpha E12"), (4, "beta E7")]),
        ("get_line(1)", "# One"),
        ("get_line(7)", "gamma"),
        ("count_lines()", 7),
        ("count_lines('^#')", 3),
        ("count_matches('E[0-9]+')", 2),
        ("quote_match('b.*7')", "beta E7"),
        ("quote_match('alpha', 3)", "alp"),
        ("quote_match('nothing')", None),
        ("[s['header'] for s in extract_sections()]", ["# One", "## Two", "# Three"]),
        ("extract_sections('^# ')[1]['content']", "Three\ngamma"),
        (
            "[(c['header'], c['level']) for c in chunk_by_headers(context)]",
            [("One", 1), ("Two", 2), ("Three", 1)],
        ),
        ("''.join(c['content'] for c in chunk_by_headers(context, 1)) == context", True),
        ("extract_json('so: {\"a\": [1, {}]} and')", {"a": [1, {}]}),
        ("extract_json('```json\\n[1, 2]\\n```')", [1, 2]),
        ("extract_json('nothing {here')", None),
    ],
)
def test_the_family(reader, call, value):
    assert reader.execute(call).value == value


@pytest.mark.spec("R0.11")
def test_a_line_past_the_end_is_an_index_error(reader):
    assert (
        reader.execute("get_line(99)").error == "IndexError: there is no line 99; the context has 7"
    )
    assert reader.execute("get_line(0)").error_type == "IndexError"


@pytest.mark.spec("R0.11")
def test_helpers_work_on_a_json_context(open_box):
    box = open_box(context={"name": "atoll", "rows": [1, 2]})
    assert box.execute("count_matches('atoll')").value == 1

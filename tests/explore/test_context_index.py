"""The index of a context: one for each, freed with it, lines and sections as they are."""

from __future__ import annotations

import gc
import os
import time

import pytest

from atoll.errors import ConfigError, SandboxClosedError
from atoll.sandbox.context import Context
from atoll.search import sections, trigrams
from atoll.search.index import ContextIndex

MARKDOWN = """# Title

text
```
# a comment in code
```
## First
text
### Deeper
## Second ##
Underlined
==========
=== path/to/file.py ===
Chapter 4: the end
#hashtag
"""


def maps():
    with open("/proc/self/maps") as file:
        return sum("atoll-context" in line for line in file)


def test_a_context_has_one_index_that_all_share():
    one, other = Context.from_text("text"), Context.from_text("text")
    assert ContextIndex.of(one) is ContextIndex.of(one)
    assert ContextIndex.of(one) is not ContextIndex.of(other)


@pytest.mark.parametrize("text", ["é" * 10_000, "€" * 10_000, "a" * 20_000_000])
def test_index_goes_with_its_context_and_leaves_nothing(text, tmp_path):
    path = tmp_path / "text"
    path.write_text(text)
    context = Context.from_file(path)
    fds, before = len(os.listdir("/proc/self/fd")), maps()
    index = ContextIndex.of(context)
    index.grep("needle")
    assert maps() == before + 1
    del index, context
    gc.collect()
    until = time.monotonic() + 30
    while maps() > before and time.monotonic() < until:
        time.sleep(0.01)  # the thread that builds holds its block
    assert maps() == before
    assert len(os.listdir("/proc/self/fd")) <= fds


def test_a_closed_index_refuses_and_another_takes_its_place():
    context = Context.from_text("needle")
    index = ContextIndex.of(context)
    index.close()
    index.close()
    for use in (lambda: index.grep("needle"), lambda: index.text(0, 1), index.sections):
        with pytest.raises(SandboxClosedError, match="the index of the context has been closed"):
            use()
    assert ContextIndex.of(context).find("needle") == 0


def test_a_search_under_way_outlives_close():
    index = ContextIndex.of(context := Context.from_text("needle\n" * 100))
    places = index.places("needle")
    assert next(places) == 0
    index.close()
    context.close()
    assert len(list(places)) == 99


def test_index_works_after_the_context_was_closed():
    context = Context.from_text("é\nneedle")
    index = ContextIndex.of(context)
    context.close()
    assert index.find("needle") == 2


def test_an_empty_context_has_nothing_in_it():
    index = ContextIndex.of(context := Context.from_text(""))
    assert (index.length, index.text(0, 5), index.find("a"), index.sections()) == (0, "", -1, ())
    assert (index.line_of(0), index.line_start(1), index.line_start(2)) == (1, 0, 0)
    assert index.grep("a").hits == ()
    index.build()
    context.close()


def test_data_is_searched_as_the_json_that_it_is():
    context = Context.from_value({"name": ["needle", "hay"]})
    index = ContextIndex.of(context)
    (hit,) = index.grep("needle").hits
    assert index.text(hit.start, hit.end) == "needle"


def test_sections_are_those_that_a_reader_sees():
    index = ContextIndex.of(context := Context.from_text(MARKDOWN))
    found = [(one.title, one.level, one.line) for one in index.sections()]
    assert found == [
        ("Title", 1, 1),
        ("First", 2, 7),
        ("Deeper", 3, 9),
        ("Second", 2, 10),
        ("Underlined", 1, 11),
        ("path/to/file.py", 1, 13),
        ("Chapter 4: the end", 1, 14),
    ]
    title, first, deeper, second, *_ = index.sections()
    assert (title.end, first.end, deeper.end) == (
        MARKDOWN.index("Underlined"),
        second.start,
        second.start,
    )
    assert index.text(first.start, first.end) == "## First\ntext\n### Deeper\n"
    context.close()


@pytest.mark.parametrize("letter", ["é", "€"])
def test_sections_have_offsets_in_characters(letter):
    text = letter * 50 + "\n# " + letter + "x\n"
    index = ContextIndex.of(context := Context.from_text(text))
    (section,) = index.sections()
    assert (section.title, section.start, section.end) == (letter + "x", 51, len(text))
    context.close()


@pytest.mark.spec("R4.20")
def test_sections_are_no_more_than_so_many(monkeypatch):
    monkeypatch.setattr(sections, "MAX_SECTIONS", 10)
    monkeypatch.setattr(sections, "_TRIES", 30)
    index = ContextIndex.of(context := Context.from_text("# a\n" * 100))
    assert len(index.sections()) == 10
    context.close()
    index = ContextIndex.of(context := Context.from_text("#nothing\n" * 100 + "# late\n"))
    assert index.sections() == ()
    context.close()


def test_a_built_index_skips_what_cannot_have_the_text():
    text = "some words of a line\n" * 500_000 + "needle\n"
    index = ContextIndex.of(context := Context.from_text(text))
    index.build()
    table = index._form().trigrams
    assert table.spans([b"needle"]) == [
        (
            (len(text) - 7) // trigrams.BLOCK * trigrams.BLOCK,
            -(-len(text) // trigrams.BLOCK) * trigrams.BLOCK + trigrams.REACH,
        )
    ]
    assert len(table.spans([b"words of"])) == -(-len(text) // trigrams.BLOCK)
    assert table.spans([b"zzzqqq"]) == []
    assert table.spans([b"ab"]) is None
    assert index.grep("zzzqqq").scanned == (0, len(text))
    context.close()


def test_the_first_grep_begins_the_index():
    index = ContextIndex.of(context := Context.from_text("some words of a line\n" * 500_000))
    index.grep("needle")
    index._form().trigrams._thread.join()
    assert index._form().trigrams.built
    context.close()


def test_what_to_find_must_be_text():
    index = ContextIndex.of(context := Context.from_text("text"))
    for wrong in ("", b"t", None):
        with pytest.raises(ConfigError, match="what to find must be a text that is not empty"):
            index.find(wrong)
    with pytest.raises(ConfigError, match="a line is 0: it must be a whole number from 1 on"):
        index.line_start(0)
    context.close()

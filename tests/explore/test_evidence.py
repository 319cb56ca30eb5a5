"""Quotes are found where they stand, as they stand, and not where they do not."""

from __future__ import annotations

import pytest

from atoll.errors import ConfigError, ExecutionTimeoutError
from atoll.sandbox.context import Context
from atoll.search import evidence
from atoll.search.evidence import check
from atoll.search.index import ContextIndex

TEXT = """It was the best of times,
  it was the   worst of times \u2014 or so
they said: \u201cwe don\u2019t know\u201d.
"""


@pytest.fixture
def index():
    context = Context.from_text(TEXT)
    yield ContextIndex.of(context)
    context.close()


@pytest.mark.parametrize("quote", ["best of times", "times,\n  it", "\u2014 or"])
def test_a_quote_word_for_word_is_exact(index, quote):
    (found,) = check(index, [quote])
    assert (found.found, found.exact) == (True, True)
    assert TEXT[found.start : found.end] == quote
    assert found.line == TEXT.count("\n", 0, found.start) + 1


@pytest.mark.parametrize(
    ("quote", "stands"),
    [
        ("of times, it was the worst", "of times,\n  it was the   worst"),
        ("times - or  so they", "times \u2014 or so\nthey"),
        ('"we don\'t know"', "\u201cwe don\u2019t know\u201d"),
        (" don't\n", "don\u2019t"),
    ],
)
def test_spaces_and_typography_may_differ(index, quote, stands):
    (found,) = check(index, [quote])
    assert (found.found, found.exact) == (True, False)
    assert TEXT[found.start : found.end] == stands
    assert found.line == TEXT.count("\n", 0, found.start) + 1


@pytest.mark.parametrize("quote", ["It was the worst", "BEST of times", "timesit", "\u2014\u2014"])
def test_what_does_not_stand_there_is_not_found(index, quote):
    (found,) = check(index, [quote])
    assert (found.found, found.exact) == (False, False)
    assert (found.start, found.end, found.line) == (None, None, None)


@pytest.mark.parametrize(
    ("quotes", "words"),
    [
        ("text", "quotes must be a list of texts, not str"),
        ([1], "quote 1 must be text, not int"),
        (["a", " \n"], "quote 2 is empty"),
        (["a"] * 101, "there are 101 quotes, at most 100: give fewer"),
        (["a" * 10_001], "quote 1 has 10,001 characters, at most 10,000: quote less"),
    ],
)
def test_quotes_that_cannot_be_are_refused(index, quotes, words):
    with pytest.raises(ConfigError, match=words):
        check(index, quotes)


@pytest.mark.spec("R4.20")
def test_places_that_are_looked_at_are_bounded(monkeypatch):
    monkeypatch.setattr(evidence, "MAX_PLACES", 20)
    context = Context.from_text(
        "word " + "." * 2_000 + ("word other " * 40 + "." * 2_000) * 50 + "word  next"
    )
    (found,) = check(ContextIndex.of(context), ["word next"])
    assert not found.found
    context.close()


@pytest.mark.spec("R4.20")
def test_a_check_ends_when_its_time_is_up(index):
    with pytest.raises(ExecutionTimeoutError, match="took too long: look for less"):
        check(index, ["nowhere to be found"], seconds=-1.0)

"""Checks whether quotes occur in a context, exactly or up to spaces, line ends and typography."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.search.blocks import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.search.index import ContextIndex

MAX_QUOTES, LONGEST_QUOTE = 100, 10_000
MAX_PLACES = 5_000
"""Most occurrences of a quote's longest word that are compared."""
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    }
)
_BREAKS = str.maketrans(dict.fromkeys("'\"-", " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A quote and where it occurs; offsets are characters of the context."""

    quote: str
    found: bool
    path: str | None = None
    """The file that the quote begins in, if the context was put together from files."""
    start: int | None = None
    end: int | None = None
    line: int | None = None
    """The line within that file, or within the context; None in the line that names a file."""
    exact: bool = False
    """Whether it occurs there character for character."""


def check(
    index: ContextIndex, quotes: Sequence[str], *, seconds: float = SECONDS
) -> tuple[Evidence, ...]:
    """Return the evidence for each quote; ExecutionTimeoutError after `seconds` for all of them."""
    _check_quotes(quotes)
    until = time.monotonic() + seconds
    return tuple(_check(index, quote, until) for quote in quotes)


def _check_quotes(quotes: Sequence[str]) -> None:
    if isinstance(quotes, str) or not isinstance(quotes, list | tuple):
        raise ConfigError(f"quotes must be a list of texts, not {type(quotes).__name__}")
    if len(quotes) > MAX_QUOTES:
        raise ConfigError(f"there are {len(quotes):,} quotes, at most {MAX_QUOTES}: give fewer")
    for number, quote in enumerate(quotes, 1):
        if not isinstance(quote, str):
            raise ConfigError(f"quote {number} must be text, not {type(quote).__name__}")
        if not quote.strip():
            raise ConfigError(f"quote {number} is empty")
        if len(quote) > LONGEST_QUOTE:
            size = f"{len(quote):,} characters, at most {LONGEST_QUOTE:,}"
            raise ConfigError(f"quote {number} has {size}: quote less")


def _check(index: ContextIndex, quote: str, until: float) -> Evidence:
    start = next(index.places(quote, seconds=until - time.monotonic()), -1)
    if start >= 0:
        return _found(index, quote, (start, start + len(quote)), exact=True)
    for window in _windows(index, quote, until):
        span = _within(index.text(*window), quote)
        if span is not None:
            first, last = window[0] + span[0], window[0] + span[1]
            return _found(index, quote, (first, last), exact=False)
    return Evidence(quote=quote, found=False)


def _found(index: ContextIndex, quote: str, span: tuple[int, int], *, exact: bool) -> Evidence:
    start, end = span
    path, header = index.file_at(start) or (None, 0)
    return Evidence(
        quote=quote,
        found=True,
        path=path,
        start=start,
        end=end,
        line=index.line_of(start) - header or None,
        exact=exact,
    )


def _windows(index: ContextIndex, quote: str, until: float) -> Iterator[tuple[int, int]]:
    """Yield parts of the context around a quote's longest word, wide enough for all of it."""
    word = max(quote.translate(_PLAIN).translate(_BREAKS).split(), key=len, default="")
    reach = 2 * len(quote) + 200
    places = index.places(word, seconds=until - time.monotonic()) if word else iter(())
    for at in islice(places, MAX_PLACES):
        yield max(at - reach, 0), at + reach


def _within(text: str, quote: str) -> tuple[int, int] | None:
    wanted = " ".join(quote.translate(_PLAIN).split())
    if wanted not in " ".join(text.translate(_PLAIN).split()):
        return None
    folded, places = _fold(text)
    at = folded.find(wanted)
    return (places[at], places[at + len(wanted) - 1] + 1) if at >= 0 else None


def _fold(text: str) -> tuple[str, list[int]]:
    """Return the text with single spaces and plain typography, and each character's old offset."""
    kept = [
        (" " if char.isspace() else char, place)
        for place, char in enumerate(text.translate(_PLAIN))
        if not char.isspace() or (place and not text[place - 1].isspace())
    ]
    return "".join(char for char, _ in kept), [place for _, place in kept]

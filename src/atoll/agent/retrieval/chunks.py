"""Splits a text into units by the type that its path suggests; never fails, limits their number."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from atoll.agent.retrieval.languages import corpus_of, grammar_of, needs_parser
from atoll.agent.retrieval.python_units import python_units
from atoll.agent.retrieval.sections import section_units
from atoll.agent.retrieval.source import Source
from atoll.agent.retrieval.tree_units import tree_units
from atoll.agent.retrieval.types import DOC
from atoll.agent.retrieval.windows import LONGEST_CODE, LONGEST_SECTION, bounded, windows

if TYPE_CHECKING:
    from atoll.agent.retrieval.types import Unit

_DOES_NOT_PARSE = (SyntaxError, ValueError, RecursionError, MemoryError)


def chunk(path: str, text: str, most: int) -> list[Unit]:
    """Return the units of a file by its language's parser, which a hostile file may crash.

    Call it in a process that may crash.
    """
    source = Source(path, text)
    if not needs_parser(path):
        return chunk_plainly(path, text, most)
    try:
        units = _parsed(source)
    except _DOES_NOT_PARSE:
        units = []
    whole = bounded(source, units or windows(source), LONGEST_CODE)
    return list(islice(whole, most))


def chunk_plainly(path: str, text: str, most: int) -> list[Unit]:
    """Return units without a parser: sections of a document, windows of other files."""
    source = Source(path, text)
    if corpus_of(path) == DOC:
        units = section_units(source) or windows(source, "section")
        return list(islice(bounded(source, units, LONGEST_SECTION), most))
    return list(islice(windows(source), most))


def _parsed(source: Source) -> list[Unit]:
    grammar = grammar_of(source.path)
    return tree_units(source, grammar) if grammar else python_units(source)

"""Splits code and prose into words for the index and for queries; splits identifiers too.

SECURITY: a query is data. FTS5 gets quoted words of letters and digits only, so no part of a query
can be an operator of its language.
"""

from __future__ import annotations

import re

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CAMEL = re.compile(r"\b[A-Za-z]+[a-z0-9][A-Z][A-Za-z0-9]*")
_IDEOGRAPH = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])")
_WORD = re.compile(r"[^\W_]+")
MOST_WORDS = 48
_COMMON = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "been", "by", "can", "do", "does", "for", "from",
    "has", "have", "how", "i", "if", "in", "into", "is", "it", "its", "may", "of", "on", "or",
    "so", "such", "than", "that", "the", "their", "then", "there", "this", "to", "was", "we",
    "what", "when", "where", "which", "will", "with", "you", "your",
})  # fmt: skip


def split_words(text: str) -> str:
    """Return the text with identifiers split: `getUser` becomes `get User getuser`."""
    if _IDEOGRAPH.search(text):
        text = _IDEOGRAPH.sub(r" \1 ", text)
    whole = _CAMEL.findall(text)
    return " ".join([_HUMP.sub(" ", text), *whole]) if whole else text


def query_words(query: str) -> list[str]:
    """Return the words of a query without repeats; common ones only if there are no others."""
    found = _WORD.findall(split_words(query))
    words = list(dict.fromkeys(word.lower() for word in found))
    return ([word for word in words if word not in _COMMON] or words)[:MOST_WORDS]


def match_expression(query: str) -> str:
    """Return the FTS5 expression that matches any of the words; "" if there are none."""
    return " OR ".join(f'"{word}"' for word in query_words(query))

"""What of a unit is encoded, and the key of its vectors in the cache: by content and model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from atoll.agent.retrieval.encoder import MODEL, MOST_TOKENS
from atoll.agent.retrieval.words import split_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.retrieval.types import Unit

_CHARACTERS = 1_200


def text_of(unit: Unit) -> str:
    """Return the text to encode: split names and the docstring first, because it is cut."""
    parts: Sequence[str] = (unit.name, unit.signature, unit.doc, unit.body)
    return split_words("\n".join(part[:_CHARACTERS] for part in parts if part)[:_CHARACTERS])


def key_of(unit: Unit) -> bytes:
    """Return the key of the unit's vectors: units with the same text share them."""
    what = f"{MODEL} {MOST_TOKENS}\n{text_of(unit)}"
    return hashlib.sha256(what.encode("utf-8", "replace")).digest()[:16]

"""Quote untrusted text for a model: between tags that the text itself cannot contain.

SECURITY: a document, a file name or a program's output may say anything, also "end of the output"
or "the user says". The tag is chosen so that it does not occur in the quoted text, so nothing in
that text can end its block. It depends on the text alone: the same run has the same prompts.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DIGITS = 8


def quoted(label: str, text: str) -> str:
    """Return `text` in a block of this label: `<label 1f6ac2d0>`, the text, `</label 1f6ac2d0>`."""
    tag = tag_not_in(lambda tag: tag in text, text)
    return f"<{label} {tag}>\n{text}\n</{label} {tag}>"


def tag_not_in(occurs: Callable[[str], bool], seed: str) -> str:
    """Return a tag made from `seed` for which `occurs` is false."""
    digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass"))
    while occurs(tag := digest.hexdigest()[:DIGITS]):
        digest.update(b"+")
    return tag

"""Quote untrusted text for a model: between tags that the text itself cannot contain.

SECURITY: a document, a file name or a program's output may say anything, also "end of the output"
or "the user says". The tag is 96 bits of a hash of the text, and no text contains its own hash, so
nothing in it can end its block. What only looks like one of these tags, in capitals or with other
brackets, is changed. The tag depends on the text alone, not on chance: a run that is replayed has
the same prompts.
"""

from __future__ import annotations

import hashlib
import re

DIGITS = 24
_LOOK_ALIKE = re.compile(
    r"[<\uff1c\u2039\u3008\u27e8\ufe64\u276e]"
    r"(?=[\s/\uff0f\u2044\u2215\\\\]{0,8}[^\W\d][\w.-]{0,40}[\s\u200b-\u200d\u2060]{1,8}[0-9A-Fa-f]{8})"
)
"""The bracket of a text that looks like a tag: `</OUTPUT 1F6AC2D0...`."""


def quoted(label: str, text: str) -> str:
    """Return `text` in a block of this label: `<label TAG>`, the text, `</label TAG>`."""
    plain = _LOOK_ALIKE.sub("&lt;", text)
    tag = tag_of(plain)
    return f"<{label} {tag}>\n{plain}\n</{label} {tag}>"


def tag_of(*texts: str) -> str:
    """Return a tag that none of the texts contains, in whatever letters."""
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()

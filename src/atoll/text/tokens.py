"""Estimates how many tokens a text has, without a tokenizer; budgets use it.

Counts the parts that tokenizers split text into, with weights fitted to o200k. On 351 pieces of
3,000 characters that were not used for the fit (code, prose, JSON, CSV) it is 10 % too high on
average; 89 % are within 20 %, 99 % within 30 %. The usual estimate, a fourth of the characters, is
less than half of the real number on CSV, hex and Chinese.
"""

from __future__ import annotations

import math
import re

WHOLE = 1 << 16
"""Characters that are counted: all of a shorter text, an evenly spread sample of a longer one."""
_SLICES = 16
_WEIGHTS = (
    (r"[A-Za-z\u00c0-\u024f]+", 0.7),
    (r"[a-z](?=[A-Z])|[A-Za-z\u00c0-\u024f]{8}", 2.2),  # tokenizers split rare and long words
    (r"[0-9]{1,3}", 1.33),
    (r"[!-/:-@\[-`{-~]+", 0.44),
    (r"[!-/:-@\[-`{-~]", 0.33),
    (r"\n\s*", 1.09),
    (r"[ \t]{2,}", 0.76),
    (r"[\x00-\x08\x0e-\x1f]", 1.0),
    (r"[\x7f-\xbf]", 0.5),
    (r"[\u0300-\u1fff]", 0.28),
    (r"[\u2000-\u2fff]", 1.2),
    (r"[\u3000-\uffff]", 0.7),
    (r"[\U00010000-\U0010ffff]", 2.0),
)
_KINDS = [(re.compile(expression), weight) for expression, weight in _WEIGHTS]


def estimate(text: str) -> int:
    """Return the estimated number of tokens: 0 for an empty text, at least 1 for any other."""
    sample = text if len(text) <= WHOLE else _spread(text)
    result = sum(weight * len(kind.findall(sample)) for kind, weight in _KINDS)
    return max(1, math.ceil(result * len(text) / len(sample))) if text else 0


def _spread(text: str) -> str:
    size = WHOLE // _SLICES
    step = (len(text) - size) / (_SLICES - 1)
    return "".join(text[int(at * step) : int(at * step) + size] for at in range(_SLICES))

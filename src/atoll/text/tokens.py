"""How many tokens a text is to a model, about, without a tokenizer; budgets are kept with it.

Counts what tokenizers cut text into, weighted to fit o200k. On 351 pieces of 3,000 characters that
the weights were not fitted to (code, prose, JSON, CSV): 10 % too high on average, 89 % of them
within 20 %, 99 % within 30 %. The usual guess, a fourth of the characters, is less than half of the
truth on CSV, hex and Chinese.
"""

from __future__ import annotations

import math
import re

WHOLE = 1 << 16
"""Characters up to which all of a text is looked at; of a longer one, as many, evenly spread."""
_SLICES = 16
_WEIGHTS = (
    (r"[A-Za-z\u00c0-\u024f]+", 0.7),
    (r"[a-z](?=[A-Z])|[A-Za-z\u00c0-\u024f]{8}", 2.2),  # rare and long words fall apart
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
    """About how many tokens; 0 for nothing, at least 1 for anything."""
    sample = text if len(text) <= WHOLE else _spread(text)
    found = sum(weight * len(kind.findall(sample)) for kind, weight in _KINDS)
    return max(1, math.ceil(found * len(text) / len(sample))) if text else 0


def _spread(text: str) -> str:
    size = WHOLE // _SLICES
    step = (len(text) - size) / (_SLICES - 1)
    return "".join(text[int(at * step) : int(at * step) + size] for at in range(_SLICES))

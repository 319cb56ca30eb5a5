"""The table of typographic characters in code, and the plain Python for each."""

# ruff: noqa: RUF001 - look-alikes are what this is about
from __future__ import annotations

_SIGNS = {
    "×": "*", "⋅": "*", "·": "*", "∙": "*", "∗": "*", "✕": "*", "÷": "/", "∕": "/", "⁄": "/",
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "‒": "-", "―": "-", "…": "...",
    "≤": "<=", "≥": ">=", "≠": "!=", "→": "->", "∈": " in ", "∉": " not in ", "∞": "float('inf')",
    "、": ",", "½": " 0.5", "¼": " 0.25", "¾": " 0.75",
    "\u2028": "\n", "\u2029": "\n", "\x85": "\n",
}  # fmt: skip
_SPACES = "\xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_UNSEEN = "\xad\u2060\ufeff" + "".join(
    map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
)
_POWERS, _INDICES = "⁰¹²³⁴⁵⁶⁷⁸⁹", "₀₁₂₃₄₅₆₇₈₉"
_WIDE = {chr(0xFF00 + code - 0x20): chr(code) for code in range(0x21, 0x7F)}
_TABLE = {**_WIDE, **_SIGNS, **dict.fromkeys(_SPACES, " "), **dict.fromkeys(_UNSEEN, "")}
_DIGITS = str.maketrans(_POWERS + _INDICES + "⁺⁻", "0123456789" * 2 + "+-")

# 47°30 must not become 4730, nor a number in base two another number
SIGN = rf"""(?P<degree> [°º](?!\w))
    | (?P<power> [⁺⁻]?[{_POWERS}]++)
    | (?P<index> (?<=[^\W\d])[{_INDICES}]++)
    | (?P<sign> [{"".join(_TABLE)}])"""
"""An expression (verbose) that matches one of them."""
SIGN_KINDS = ("degree", "power", "index", "sign")
"""The names of its groups."""


def plain_sign(kind: str, sign: str) -> str:
    """Return the Python for what the group `kind` of SIGN has matched."""
    if kind == "sign":
        return _TABLE[sign]
    if kind == "degree":
        return ""
    return ("**" if kind == "power" else "") + sign.translate(_DIGITS)

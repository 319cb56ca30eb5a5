"""Replaces typographic characters in a model's code, if the code does not parse with them.

A model that was asked about "47°" writes `theta = 47°`, and “curly” quotes. Code that parses is
never changed. In code that does not parse, strings and comments keep their text. If the result
does not parse either, the original is returned, so that the error shows what the model wrote.
"""

# ruff: noqa: RUF001 - look-alikes are what this is about
from __future__ import annotations

import ast
import re

_SIGNS = {
    **dict.fromkeys("×⋅·∙∗✕", "*"),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("−–—‐‑‒―", "-"),
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "→": "->",
    "∈": " in ",
    "∉": " not in ",
    "∞": "float('inf')",
    "、": ",",
    "½": " 0.5",
    "¼": " 0.25",
    "¾": " 0.75",
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
}
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


MAX_CHARACTERS = 1 << 20
"""Longer code is not changed: a syntax tree takes a hundred times the memory of its text."""

_DOUBLE, _SINGLE = "“”„‟＂", "‘’‚‛＇"


def sanitize_code_unicode(code: str) -> str:
    """Return the code with typographic characters replaced, if it parses only without them."""
    if code.isascii() or len(code) > MAX_CHARACTERS or _parses(code) is not False:
        return code
    for tokens in (_PAIRED, _MIXED):
        plain = tokens.sub(_plain, code)
        if plain != code and _parses(plain):
            return plain
    return code


def _parses(code: str) -> bool | None:
    """Return whether the code parses; None if unknown: nested too deep, or lone surrogates."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        compile(code, "<code>", "exec", flags, dont_inherit=True)
    except SyntaxError:
        return False
    except (ValueError, RecursionError, MemoryError, SystemError):
        return None  # CPython 3.11 raises SystemError if two threads parse at the same time
    return True


def _tokens(inside: str, closing_double: str, closing_single: str) -> re.Pattern[str]:
    """Return the expression that matches strings, comments and signs.

    It takes linear time: every repeat is possessive, and an open string runs to the end. CPython
    before 3.11.5 does not go back to where a possessive repeat of a group began if its last round
    fails halfway (gh-106052), so each round fails at its beginning, by a lookahead, or not at all.
    """
    of_single = rf"""[^\n{_SINGLE}{inside and "'"}]*+"""
    return re.compile(
        rf"""
        (?P<comment> \#[^\n]*+ )
        | (?P<field> \b (?:[fF][rR]?|[rR][fF]) (?=["'{_DOUBLE}{_SINGLE}]) )?
          (?:
            (?P<long> \"\"\" [^"\\]*+ (?:(?={_fewer('"')})\\?+.[^"\\]*+)*+ (?:\"\"\"|\\?\Z)
                    | ''' [^'\\]*+ (?:(?={_fewer("'")})\\?+.[^'\\]*+)*+ (?:'''|\\?\Z) )
            | (?P<straight> " [^"\\\n{inside}]*+ (?:(?=\\.)\\.[^"\\\n{inside}]*+)*+
                            [{closing_double}]?
                          | ' [^'\\\n{inside}]*+ (?:(?=\\.)\\.[^'\\\n{inside}]*+)*+
                            [{closing_single}]? )
            | [{_DOUBLE}]{{3}}
              (?P<block> [^{_DOUBLE}]*+ (?:(?={_fewer(_DOUBLE)})[{_DOUBLE}][^{_DOUBLE}]*+)*+ )
              (?P<block_end> (?:[{_DOUBLE}]{{3}})? )
            | [{_DOUBLE}] (?P<double> [^\n{_DOUBLE}{inside and '"'}]*+ )
              (?P<double_end> [{_DOUBLE}{inside and '"'}]?+ )
            | [{_SINGLE}] (?P<single> {of_single} (?:(?=’\w)’{of_single})*+ )
              (?P<single_end> [{_SINGLE}{inside and "'"}]?+ )
          )
        | {SIGN}
        """,
        re.VERBOSE | re.DOTALL,
    )


def _fewer(quotes: str) -> str:
    """Return the expression for anything but three of these quotes.

    Without the first branch, `re` would factor out the prefix that the others share, and the
    lookahead would fail halfway.
    """
    quote = f"[{quotes}]"
    return rf"[^{quotes}]|{quote}[^{quotes}]|{quote}{quote}[^{quotes}]|{quote}\Z|{quote}{quote}\Z"


_PAIRED = _tokens("", '"', "'")
"""Each string ends with quotes of the kind it began with."""
_MIXED = _tokens(_DOUBLE + _SINGLE, '"' + _DOUBLE, "'" + _SINGLE)
"""A string may begin with one kind of quotes and end with the other."""
_FIELD = re.compile(r"\{\{|\}\}|\{(?P<code>[^{}:!]++)")


def _plain(token: re.Match[str]) -> str:
    kind = token.lastgroup or ""
    if kind in SIGN_KINDS:
        return plain_sign(kind, token[0])
    if kind == "comment":
        return token[0]
    prefix = token["field"] or ""
    text = token[0][len(prefix) :]
    if kind == "straight" and len(text) > 1 and text[-1] in _DOUBLE + _SINGLE:
        text = text[:-1] + text[0]
    elif kind not in ("long", "straight"):
        text = _quoted(token)
    return prefix + (_FIELD.sub(_plain_field, text) if prefix else text)


def _quoted(token: re.Match[str]) -> str:
    """Return a string that has curly quotes, with straight ones that do not occur in its text."""
    for name, quote, other in (("block", '"""', "'''"), ("double", '"', "'"), ("single", "'", '"')):
        text = token[name]
        if text is None:
            continue
        if not token[f"{name}_end"]:
            return quote + text
        if quote not in text:
            return quote + text + quote
        if other not in text:
            return other + text + other
        return quote + re.sub(rf"(?<!\\){quote}", rf"\\{quote}", text) + quote
    raise AssertionError("a token has one of the three groups")


def _plain_field(field: re.Match[str]) -> str:
    """Return a replacement field of an f-string, whose code is made plain up to its format."""
    if field["code"] is None:
        return field[0]
    return "{" + _PAIRED.sub(_plain, field["code"])

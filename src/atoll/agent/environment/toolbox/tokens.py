"""Reads a formula: numbers, names, operators and brackets, by precedence, without Python's eval.

    2x^2 + 3(x - 1)    ──▶    tokens    ──▶    operations of the caller, innermost first

A name or a bracket after a value is multiplied with it. `**` is `^`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 2_000
DEEPEST = 60
MAX_DIGITS = 60
"""Digits of one number in a formula."""
EXPONENT_DIGITS = 3
"""Digits of the exponent in 1e308."""
_TOKEN = re.compile(
    r"\s*(?:((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
    r"|([A-Za-z_]\w*)|(\*\*|//|[-+*/%^(),]))",
    re.ASCII | re.IGNORECASE,
)
_LEVELS = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "^": 4}
_UNARY = 3
"""A sign binds closer than a product and less than a power: -x^2 is -(x^2)."""


class Algebra(Protocol):
    """What a formula is made of: numbers for a calculator, polynomials for a simplifier."""

    def number(self, value: Fraction) -> Any:
        """Return a number."""

    def name(self, text: str) -> Any:
        """Return what a name stands for; ValueError if it is not known."""

    def call(self, name: str, values: Sequence[Any]) -> Any | None:
        """Return the result of a function; None if there is no function of that name."""

    def negate(self, value: Any) -> Any:
        """Return a value with the other sign."""

    def apply(self, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator."""


def evaluate(formula: str, algebra: Algebra) -> Any:
    """Return the value of a formula; ValueError says why it is refused, and where."""
    if not isinstance(formula, str) or not formula.strip():
        raise ValueError("expression must be a text that is not empty, such as '2x + 1'")
    if len(formula) > LONGEST:
        raise ValueError(f"expression has {len(formula):,} characters; the most is {LONGEST:,}")
    return _Reader(formula.replace("\u2212", "-").replace("\u00d7", "*"), algebra).whole()


class _Reader:
    """One formula; precedence climbing, whose depth is limited."""

    def __init__(self, formula: str, algebra: Algebra) -> None:
        self._formula, self._algebra = formula, algebra
        self._at, self._depth = 0, 0
        self._kind, self._text = "", ""
        self._next()

    def whole(self) -> Any:
        value = self._expression(1)
        if self._kind != "end":
            raise self._wrong(f"{self._text!r} is not expected")
        return value

    def _expression(self, least: int) -> Any:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError(f"the expression is nested more than {DEEPEST} deep: write it flatter")
        value = self._signed(least)
        while (operator := self._operator()) and _LEVELS[operator] >= least:
            if self._text in _LEVELS:
                self._next()
            level = _LEVELS[operator]
            right = self._expression(level if operator == "^" else level + 1)
            value = self._algebra.apply(operator, value, right)
        self._depth -= 1
        return value

    def _operator(self) -> str:
        """Return the next operator, or `*` between neighbours without one."""
        if self._kind == "name" or self._text == "(":
            return "*"
        return self._text if self._text in _LEVELS else ""

    def _signed(self, least: int) -> Any:
        if self._text in {"+", "-"}:
            sign = self._text
            self._next()
            value = self._expression(max(least, _UNARY))
            return self._algebra.negate(value) if sign == "-" else value
        return self._atom()

    def _atom(self) -> Any:
        kind, text = self._kind, self._text
        if kind == "number":
            self._next()
            return self._algebra.number(_number(text))
        if kind == "name":
            self._next()
            if self._text == "(" and (value := self._call(text)) is not None:
                return value
            return self._algebra.name(text)
        if text == "(":
            self._next()
            value = self._expression(1)
            self._expect(")")
            return value
        raise self._wrong("something is missing" if kind == "end" else f"{text!r} is not expected")

    def _call(self, name: str) -> Any | None:
        """Return the value of a function call; None, with nothing read, if it is not a function."""
        if self._algebra.call(name, ()) is None:
            return None
        self._next()
        values = [self._expression(1)]
        while self._text == ",":
            self._next()
            values.append(self._expression(1))
        self._expect(")")
        return self._algebra.call(name, values)

    def _expect(self, text: str) -> None:
        if self._text != text:
            raise self._wrong(f"{text!r} is missing")
        self._next()

    def _next(self) -> None:
        match = _TOKEN.match(self._formula, self._at)
        if match is None:
            rest = self._formula[self._at :].strip()
            if rest:
                raise self._wrong(f"{rest[0]!r} is not part of a formula")
            self._kind, self._text = "end", ""
            return
        self._at = match.end()
        kinds = ("number", "name", "operator")
        self._kind, self._text = next(
            (kind, text) for kind, text in zip(kinds, match.groups(), strict=True) if text
        )
        if self._text == "**":
            self._text = "^"

    def _wrong(self, what: str) -> ValueError:
        near = self._formula[max(0, self._at - 20) : self._at + 10].strip()
        return ValueError(f"{what}, near {near!r}")


def _number(text: str) -> Fraction:
    digits, _, exponent = text.lower().partition("e")
    if len(digits) > MAX_DIGITS or len(exponent.lstrip("+-0")) > EXPONENT_DIGITS:
        raise ValueError(f"a number has too many digits: {text[:20]}...")
    return Fraction(text)

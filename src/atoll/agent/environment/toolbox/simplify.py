"""math_simplify: polynomials, and fractions of them, as the shortest of their equal forms.

    x^2 + 2x + 1  ──▶  collect  ──▶  cancel  ──▶  factor  ──▶  (x+1)^2

It is exact and bounded. A computer algebra system such as SymPy would know more functions, but
parses with eval and has no bound on its time, so it must not run on the host for a guest.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from atoll.agent.environment.toolbox import polynomials as poly
from atoll.agent.environment.toolbox.tokens import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.agent.environment.toolbox.polynomials import Budget, Monomial, Polynomial

MAX_VARIABLES = 8
MAX_SIZE = 2_500
"""Bits of a coefficient times the degree, of a polynomial whose factors are looked for."""
NOT_KNOWN = frozenset(
    """
    sin cos tan exp log ln sqrt abs asin acos atan pi
""".split()
)


def math_simplify(expression: str) -> dict[str, object]:
    """Simplify a polynomial or a fraction of polynomials: "x^2 + 2x + 1" is "(x+1)^2".

    Returns {"simplified": text, "steps": [text, ...]}. Letters are variables, `2x` is a product.
    """
    budget = poly.Budget()
    try:
        fraction = evaluate(expression, _Fractions(budget))
    except ZeroDivisionError:
        raise ValueError("the expression divides by zero") from None
    steps = [f"collect terms: {_fraction(fraction, poly.written)}"]
    cancelled = _cancelled(fraction)
    if cancelled != fraction:
        steps.append(f"cancel common factors: {_fraction(cancelled, poly.written)}")
    factored, collected = (_fraction(cancelled, way) for way in (_factored, poly.written))
    if factored != collected:
        steps.append(f"factor: {factored}")
    return {"simplified": min(collected, factored, key=len), "steps": steps}


class _Fraction(NamedTuple):
    top: Polynomial
    bottom: Polynomial


class _Fractions:
    """Fractions of polynomials, as a formula is read."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._one = poly.constant(Fraction(1))

    def number(self, value: Fraction) -> _Fraction:
        return _Fraction(poly.constant(value), self._one)

    def name(self, text: str) -> _Fraction:
        """A name of several letters is a product of variables: `xy` is x times y."""
        if text.lower() in NOT_KNOWN:
            raise ValueError(
                f"{text} is not known to math_simplify, which has + - * / ^ and variables: "
                "calculate(...) has functions of numbers"
            )
        result = self._one
        for name in _letters(text):
            result = poly.multiply(result, poly.variable(name), self._budget)
        return self._checked(_Fraction(result, self._one))

    def call(self, name: str, values: Sequence[Any]) -> Any | None:  # noqa: ARG002 - has none
        return None

    def negate(self, value: _Fraction) -> _Fraction:
        return _Fraction(poly.add({}, value.top, -1), value.bottom)

    def apply(self, operator: str, left: _Fraction, right: _Fraction) -> _Fraction:
        if operator in {"+", "-"}:
            return self._checked(self._sum(left, right, 1 if operator == "+" else -1))
        if operator == "*":
            return self._checked(self._product(left, right.top, right.bottom))
        if operator == "/":
            if not right.top:
                raise ZeroDivisionError
            return self._checked(self._product(left, right.bottom, right.top))
        if operator == "^":
            return self._checked(self._power(left, right))
        raise ValueError(f"{operator!r} is not part of a polynomial: use + - * / ^")

    def _sum(self, left: _Fraction, right: _Fraction, sign: int) -> _Fraction:
        if left.bottom == right.bottom:
            return _Fraction(poly.add(left.top, right.top, sign), left.bottom)
        over = poly.multiply(left.top, right.bottom, self._budget)
        other = poly.multiply(right.top, left.bottom, self._budget)
        bottom = poly.multiply(left.bottom, right.bottom, self._budget)
        return _Fraction(poly.add(over, other, sign), bottom)

    def _product(self, left: _Fraction, top: Polynomial, bottom: Polynomial) -> _Fraction:
        return _Fraction(
            poly.multiply(left.top, top, self._budget),
            poly.multiply(left.bottom, bottom, self._budget),
        )

    def _power(self, base: _Fraction, exponent: _Fraction) -> _Fraction:
        given = exponent.top.get((), Fraction(0))
        if poly.degree(exponent.top) or exponent.bottom != self._one or given.denominator != 1:
            raise ValueError("an exponent must be a whole number")
        if abs(given) > poly.MAX_BITS:
            raise ValueError(f"an exponent must be at most {poly.MAX_BITS:,}")
        top, bottom = base if given >= 0 else (base.bottom, base.top)
        if not bottom:
            raise ZeroDivisionError
        times = abs(int(given))
        return _Fraction(
            poly.power(top, times, self._budget), poly.power(bottom, times, self._budget)
        )

    def _checked(self, value: _Fraction) -> _Fraction:
        """Return a fraction whose denominator has no numbers; ValueError if it is too large."""
        if len({*poly.variables(value.top), *poly.variables(value.bottom)}) > MAX_VARIABLES:
            raise ValueError(f"there are more than {MAX_VARIABLES} variables")
        number, _ = poly.content(value.bottom)
        top = {monomial: coefficient / number for monomial, coefficient in value.top.items()}
        return _Fraction(poly.checked(top), poly.without(value.bottom, number, ()))


def _is_small(given: Polynomial) -> bool:
    """Return whether common factors are found in little time: their numbers grow on the way."""
    bits = max(
        (value.numerator.bit_length() + value.denominator.bit_length() for value in given.values()),
        default=0,
    )
    return bits * poly.degree(given) <= MAX_SIZE


def _letters(text: str) -> list[str]:
    """Return the variables in a name: each is a letter, with the digits that follow it."""
    result: list[str] = []
    for letter in text:
        if letter.isdigit() or (letter == "_" and result):
            result[-1] += letter
        else:
            result.append(letter)
    return result


def _cancelled(given: _Fraction) -> _Fraction:
    """Return the fraction without common factors; those in several variables, if they are equal."""
    top, bottom = given
    if not top or poly.degree(bottom) == 0:
        return given
    one = poly.constant(Fraction(1))
    _, left = poly.content(top)
    _, right = poly.content(bottom)
    shared = tuple(
        (name, min(exponent, dict(right)[name])) for name, exponent in left if name in dict(right)
    )
    top, bottom = (poly.without(part, Fraction(1), shared) for part in (top, bottom))
    names = sorted({*poly.variables(top), *poly.variables(bottom)})
    if len(names) == 1 and _is_small(top) and _is_small(bottom):
        lists = [_coefficients(part, names[0]) for part in (top, bottom)]
        common = poly.common_factor(*lists)
        quotients = [poly.divided(part, common) for part in lists]
        top, bottom = (_from_coefficients(part, names[0]) for part in quotients)
    elif len(top) == len(bottom) and _multiple(top, bottom) is not None:
        top, bottom = poly.constant(_multiple(top, bottom) or Fraction(1)), one
    number, _ = poly.content(bottom)
    return _Fraction(poly.without(top, number, ()), poly.without(bottom, number, ()))


def _multiple(polynomial: Polynomial, other: Polynomial) -> Fraction | None:
    """Return the number that makes one polynomial of the other, if there is one."""
    if polynomial.keys() != other.keys():
        return None
    result = {polynomial[monomial] / other[monomial] for monomial in polynomial}
    return result.pop() if len(result) == 1 else None


def _fraction(given: _Fraction, write: Callable[[Polynomial], str]) -> str:
    """Return a fraction as text, with whole numbers above and below the line."""
    scale = math.lcm(*(value.denominator for value in given.top.values()))
    top, bottom = ({monomial: value * scale for monomial, value in part.items()} for part in given)
    if bottom == poly.constant(Fraction(1)):
        return write(top)
    above, below = write(top), write(bottom)
    is_atom = len(bottom) == 1 and (poly.degree(bottom) == 0 or below.isalpha() or "^" in below)
    is_atom = is_atom and sum(map(len, bottom)) <= 1 and (scale == 1 or poly.degree(bottom) == 0)
    below = below if is_atom or _is_product(below) else f"({below})"
    return f"{above if len(top) == 1 or _is_product(above) else f'({above})'}/{below}"


def _is_product(text: str) -> bool:
    """Return whether a text is one bracket, perhaps with an exponent, so that it needs no other."""
    return bool(re.fullmatch(r"-?\d*\([^()]*\)(\^\d+)?", text)) and not text[0].isdigit()


def _factored(given: Polynomial) -> str:
    """Return a polynomial as a product: number, variables, then factors."""
    if len(given) < 2 or poly.degree(given) == 0:
        return poly.written(given)
    number, common = poly.content(given)
    rest = poly.without(given, number, common)
    found = _parts(rest)
    if len(found) == 1 and found[0][1] == 1 and number == 1 and not common:
        return poly.written(given)
    parts = [_bracket(part, exponent) for part, exponent in found]
    sign = "-" if number < 0 else ""
    size = abs(number)
    head = "" if size == 1 else str(size) if size.denominator == 1 else f"({size})"
    return sign + head + poly.written_monomial(common) + "".join(parts)


def _parts(given: Polynomial) -> list[tuple[Polynomial, int]]:
    """Return the factors of a polynomial in one variable, or of a homogeneous one in two."""
    names = poly.variables(given)
    if not _is_small(given):
        return [(given, 1)]
    if len(names) == 1:
        result = poly.factors(_coefficients(given, names[0]))
        return [(_from_coefficients(part, names[0]), exponent) for part, exponent in result]
    degrees = {sum(exponent for _, exponent in monomial) for monomial in given}
    if len(names) == 2 and len(degrees) == 1:
        first, second = names
        flat = _coefficients(
            {_only(monomial, first): value for monomial, value in given.items()}, first
        )
        result = poly.factors(flat)
        return [(_homogeneous(part, first, second), exponent) for part, exponent in result]
    return [(given, 1)]


def _only(monomial: Monomial, name: str) -> Monomial:
    return tuple(pair for pair in monomial if pair[0] == name)


def _homogeneous(part: poly.Coefficients, first: str, second: str) -> Polynomial:
    most = len(part) - 1
    return {
        tuple((name, size) for name, size in ((first, at), (second, most - at)) if size): value
        for at, value in enumerate(part)
        if value
    }


def _bracket(part: Polynomial, exponent: int) -> str:
    return f"({poly.written(part)})" + (f"^{exponent}" if exponent > 1 else "")


def _coefficients(given: Polynomial, name: str) -> poly.Coefficients:
    result = [Fraction(0)] * (poly.degree(given) + 1)
    for monomial, value in given.items():
        result[dict(monomial).get(name, 0)] = value
    return result


def _from_coefficients(given: poly.Coefficients, name: str) -> Polynomial:
    return {((name, at),) if at else (): value for at, value in enumerate(given) if value}

"""Polynomials with exact fractions in several variables, and the factors of those in one.

A polynomial maps monomials to coefficients; a monomial is a tuple of (variable, exponent), sorted.
A coefficient list has the constant first.

SECURITY: every product is counted against a budget before it is made. Degrees are at most
MAX_DEGREE, and numbers whose divisors are tried are small, so that no input takes long.
"""

from __future__ import annotations

import math
from fractions import Fraction

Monomial = tuple[tuple[str, int], ...]
Polynomial = dict[Monomial, Fraction]

MAX_DEGREE = 40
MAX_TERMS = 400
MAX_BITS = 4_096
MAX_WORK = 400_000
"""Products of two terms in one call."""


class Budget:
    """Counts the work of one call."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def spend(self, products: int) -> None:
        """Raise ValueError if there is not so much left."""
        self._left -= products
        if self._left < 0:
            raise ValueError("the expression takes too many steps: simplify parts of it")


def constant(value: Fraction) -> Polynomial:
    """Return a polynomial without variables."""
    return {(): value} if value else {}


def variable(name: str) -> Polynomial:
    """Return a polynomial that is one variable."""
    return {((name, 1),): Fraction(1)}


def add(polynomial: Polynomial, other: Polynomial, sign: int = 1) -> Polynomial:
    """Return the sum, or with `sign` -1 the difference."""
    result = dict(polynomial)
    for monomial, value in other.items():
        result[monomial] = result.get(monomial, Fraction(0)) + sign * value
    return checked({monomial: value for monomial, value in result.items() if value})


def multiply(polynomial: Polynomial, other: Polynomial, budget: Budget) -> Polynomial:
    """Return the product."""
    if degree(polynomial) + degree(other) > MAX_DEGREE:
        raise ValueError(f"the degree is over {MAX_DEGREE}: use smaller exponents")
    budget.spend(len(polynomial) * len(other))
    result: Polynomial = {}
    for left, a in polynomial.items():
        for right, b in other.items():
            monomial = _joined(left, right)
            result[monomial] = result.get(monomial, Fraction(0)) + a * b
    return checked({monomial: value for monomial, value in result.items() if value})


def power(base: Polynomial, exponent: int, budget: Budget) -> Polynomial:
    """Return a power, by squaring; the exponent is from 0 on."""
    if degree(base) * exponent > MAX_DEGREE:
        raise ValueError(f"the degree is over {MAX_DEGREE}: use smaller exponents")
    bits = max((_bits(value) for value in base.values()), default=0)
    if bits * exponent > MAX_BITS:
        raise ValueError(f"a coefficient has more than {MAX_BITS:,} bits: use smaller numbers")
    result = constant(Fraction(1))
    while exponent:
        if exponent & 1:
            result = multiply(result, base, budget)
        exponent >>= 1
        base = multiply(base, base, budget) if exponent else base
    return result


def degree(polynomial: Polynomial) -> int:
    """Return the highest sum of exponents of a term."""
    return max((sum(exponent for _, exponent in monomial) for monomial in polynomial), default=0)


def variables(polynomial: Polynomial) -> list[str]:
    """Return the names of the variables, sorted."""
    return sorted({name for monomial in polynomial for name, _ in monomial})


def checked(polynomial: Polynomial) -> Polynomial:
    """Return the polynomial; ValueError if it is too large."""
    if len(polynomial) > MAX_TERMS:
        raise ValueError(f"there are more than {MAX_TERMS} terms: simplify parts of it")
    if any(_bits(value) > MAX_BITS for value in polynomial.values()):
        raise ValueError(f"a coefficient has more than {MAX_BITS:,} bits: use smaller numbers")
    return polynomial


def content(polynomial: Polynomial) -> tuple[Fraction, Monomial]:
    """Return what all terms have in common: a number, with the sign of the first, and variables."""
    values = list(polynomial.values())
    number = Fraction(
        math.gcd(*(value.numerator for value in values)),
        math.lcm(*(value.denominator for value in values)),
    )
    first = polynomial[ordered(polynomial)[0]]
    shared = {
        name: min(dict(monomial).get(name, 0) for monomial in polynomial)
        for name in variables(polynomial)
    }
    common = tuple((name, exponent) for name, exponent in shared.items() if exponent)
    return (-number if first < 0 else number), common


def without(polynomial: Polynomial, number: Fraction, common: Monomial) -> Polynomial:
    """Return a polynomial divided by a number and by a monomial that all of its terms have."""
    taken = dict(common)
    return {
        tuple(
            (name, exponent - taken.get(name, 0))
            for name, exponent in monomial
            if exponent > taken.get(name, 0)
        ): value / number
        for monomial, value in polynomial.items()
    }


def ordered(polynomial: Polynomial) -> list[Monomial]:
    """Return the monomials as they are written: the highest degree first, then by variables."""
    names = variables(polynomial)

    def rank(monomial: Monomial) -> tuple[int, ...]:
        exponents = dict(monomial)
        return (-sum(exponents.values()), *(-exponents.get(name, 0) for name in names))

    return sorted(polynomial, key=rank)


def written(polynomial: Polynomial, space: str = "") -> str:
    """Return a polynomial as text: `x^2+2x+1`; `space` stands around + and -."""
    if not polynomial:
        return "0"
    parts = []
    for monomial in ordered(polynomial):
        value = polynomial[monomial]
        sign = "-" if value < 0 else "+"
        parts.append((sign, _term(abs(value), monomial)))
    first = ("-" if parts[0][0] == "-" else "") + parts[0][1]
    return first + "".join(f"{space}{sign}{space}{term}" for sign, term in parts[1:])


def written_monomial(monomial: Monomial) -> str:
    """Return variables with their exponents as text: `x^2y`."""
    return "".join(name if exponent == 1 else f"{name}^{exponent}" for name, exponent in monomial)


def _term(value: Fraction, monomial: Monomial) -> str:
    letters = written_monomial(monomial)
    if not letters:
        return str(value)
    if value == 1:
        return letters
    return f"{value}{letters}" if value.denominator == 1 else f"({value}){letters}"


def _joined(left: Monomial, right: Monomial) -> Monomial:
    exponents = dict(left)
    for name, exponent in right:
        exponents[name] = exponents.get(name, 0) + exponent
    return tuple(sorted(exponents.items()))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


Coefficients = list[Fraction]

LARGEST_TRIED = 1_000_000
"""Numbers up to which divisors are tried for rational roots."""
MAX_CANDIDATES = 2_000


def factors(given: Coefficients) -> list[tuple[Coefficients, int]]:
    """Return primitive factors with their exponents, of a polynomial without a constant factor."""
    result: list[tuple[Coefficients, int]] = []
    for part, exponent in _squarefree(given):
        rest = part
        for root in _rational_roots(part):
            linear = [Fraction(-root.numerator), Fraction(root.denominator)]
            result.append((linear, exponent))
            rest = _divided(rest, linear)[0]
        if len(rest) > 1:
            result.append((primitive(rest), exponent))
    return sorted(
        result, key=lambda pair: (len(pair[0]), [abs(value) for value in pair[0]], pair[0])
    )


def common_factor(coefficients: Coefficients, other: Coefficients) -> Coefficients:
    """Return the greatest common divisor, primitive."""
    while other:
        coefficients, other = other, primitive(_divided(coefficients, other)[1])
    return primitive(coefficients)


def divided(coefficients: Coefficients, other: Coefficients) -> Coefficients:
    """Return the quotient of a division without remainder."""
    return _divided(coefficients, other)[0]


def primitive(given: Coefficients) -> Coefficients:
    """Return the polynomial with whole coefficients that have no common factor, the last > 0."""
    values = _trimmed(given)
    if not values:
        return []
    common = Fraction(
        math.gcd(*(value.numerator for value in values)),
        math.lcm(*(value.denominator for value in values)),
    )
    common = -common if values[-1] < 0 else common
    return [value / common for value in values]


def _squarefree(given: Coefficients) -> list[tuple[Coefficients, int]]:
    """Return factors without repeated roots and their exponents (Yun's algorithm)."""
    derived = [at * value for at, value in enumerate(given)][1:]
    common = common_factor(given, _trimmed(derived))
    rest, exponent, result = _divided(given, common)[0], 1, []
    while len(rest) > 1:
        shared = common_factor(rest, common)
        part = _divided(rest, shared)[0]
        if len(part) > 1:
            result.append((primitive(part), exponent))
        rest, common = shared, _divided(common, shared)[0]
        exponent += 1
    return result


def _rational_roots(given: Coefficients) -> list[Fraction]:
    """Return the rational roots of a primitive polynomial without repeated ones."""
    if len(given) == 2:
        return [-given[0] / given[1]]
    roots, rest = [], given
    if not rest[0]:
        roots.append(Fraction(0))
        rest = rest[1:]
    tops, bottoms = _divisors(int(abs(rest[0]))), _divisors(int(abs(rest[-1])))
    if len(tops) * len(bottoms) * 2 > MAX_CANDIDATES:
        return roots
    candidates = {Fraction(s * top, low) for top in tops for low in bottoms for s in (1, -1)}
    return [*roots, *sorted(root for root in candidates if not _value(rest, root))]


def _divisors(number: int) -> list[int]:
    if not 0 < number <= LARGEST_TRIED:
        return []
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if not number % divisor]
    return sorted({*small, *(number // divisor for divisor in small)})


def _value(given: Coefficients, at: Fraction) -> Fraction:
    result = Fraction(0)
    for value in reversed(given):
        result = result * at + value
    return result


def _divided(coefficients: Coefficients, other: Coefficients) -> tuple[Coefficients, Coefficients]:
    """Return quotient and remainder."""
    rest, result = list(coefficients), [Fraction(0)] * max(0, len(coefficients) - len(other) + 1)
    for at in range(len(result) - 1, -1, -1):
        factor = result[at] = rest[at + len(other) - 1] / other[-1]
        for offset, value in enumerate(other):
            rest[at + offset] -= factor * value
    return result, _trimmed(rest)


def _trimmed(given: Coefficients) -> Coefficients:
    values = list(given)
    while values and not values[-1]:
        values.pop()
    return values

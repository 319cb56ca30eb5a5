"""Factors a polynomial in one variable over the fractions: repeated factors, and rational roots.

A coefficient list has the constant first. SECURITY: degrees are at most MAX_DEGREE, and numbers
whose divisors are tried are small, so that no input takes long.
"""

from __future__ import annotations

import math
from fractions import Fraction

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

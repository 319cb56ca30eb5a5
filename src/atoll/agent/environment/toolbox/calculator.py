"""calculate: arithmetic with exact fractions, and the usual functions of numbers."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.toolbox.tokens import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Number = Fraction | float

MAX_BITS = 8_192
"""Bits of a numerator or a denominator, also of results on the way."""
MAX_FACTORIAL = 800
_NAMES = {"pi": math.pi, "e": math.e, "tau": math.tau}
_ONE: dict[str, Callable[[float], float]] = {
    name: getattr(math, name)
    for name in (
        "sin cos tan asin acos atan sinh cosh tanh exp log10 log2 degrees radians cbrt".split()
    )
} | {"ln": math.log}


def calculate(expression: str) -> dict[str, object]:
    """Compute a formula exactly where that is possible: "(1/3 + 1/6) * 4", "sqrt(2) * sin(pi/4)".

    `value` is an int or a float; `exact` is the fraction, or None if a function made it a float.
    """
    try:
        result = evaluate(expression, _Numbers())
    except ZeroDivisionError:
        raise ValueError("the expression divides by zero") from None
    except OverflowError:
        raise ValueError("the result is too large for a float") from None
    if isinstance(result, float):
        return {"value": result, "exact": None}
    whole = result.denominator == 1
    return {"value": int(result) if whole else _to_float(result), "exact": str(result)}


class _Numbers:
    """Fractions; what a function returns is a float, unless it is exact."""

    def number(self, value: Fraction) -> Number:
        return value

    def name(self, text: str) -> Number:
        if text.lower() not in _NAMES:
            known = ", ".join((*_NAMES, *_FUNCTIONS, *_ONE))
            raise ValueError(f"{text[:40]!r} is not known: calculate has numbers, {known}")
        return _NAMES[text.lower()]

    def call(self, name: str, values: Sequence[Number]) -> Any | None:
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*values) if values else ""
        if name not in _ONE:
            return None
        if not values:
            return ""
        if len(values) > 1:
            raise ValueError(f"{name} takes one number, not {len(values)}")
        try:
            return _ONE[name](_to_float(values[0]))
        except ValueError:
            raise ValueError(f"{name}({_short(values[0])}) is not defined") from None

    def negate(self, value: Number) -> Number:
        return -value

    def apply(self, symbol: str, left: Number, right: Number) -> Number:
        if symbol == "^":
            return _power(left, right)
        if isinstance(left, float) or isinstance(right, float):
            left, right = _to_float(left), _to_float(right)
        result = _OPERATORS[symbol](left, right)
        return _checked(Fraction(result)) if isinstance(result, int | Fraction) else result


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


def _power(base: Number, exponent: Number) -> Number:
    """Return a power; of a fraction to a whole number, exactly, if its size is in bounds."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        times = abs(exponent.numerator)
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits <= 1:  # 0, 1 and -1, of which any power is small
            times = min(times, times % 2 + 2)
        if bits * times > MAX_BITS:
            raise ValueError(f"the power has more than {MAX_BITS:,} bits: use smaller numbers")
        return base ** (times if exponent >= 0 else -times)
    try:
        return math.pow(_to_float(base), _to_float(exponent))
    except ValueError:
        text = f"{_short(base)} ^ {_short(exponent)}"
        raise ValueError(f"{text} is not a real number") from None


def _checked(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError(f"a number has more than {MAX_BITS:,} bits: use smaller ones")
    return value


def _sqrt(value: Number) -> Number:
    if value < 0:
        raise ValueError(f"sqrt({_short(value)}) is not a real number")
    if isinstance(value, Fraction):
        roots = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if (roots[0] ** 2, roots[1] ** 2) == (value.numerator, value.denominator):
            return Fraction(*roots)
    return math.sqrt(_to_float(value))


def _factorial(value: Number) -> Number:
    if isinstance(value, float) or value.denominator != 1 or not 0 <= value <= MAX_FACTORIAL:
        raise ValueError(f"factorial takes a whole number from 0 to {MAX_FACTORIAL}")
    return _checked(Fraction(math.factorial(value.numerator)))


def _log(value: Number, base: Number = math.e) -> Number:
    try:
        return math.log(_to_float(value), _to_float(base))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"log({_short(value)}, {_short(base)}) is not defined") from None


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    if not -100 <= digits <= 100:
        raise ValueError("round takes digits from -100 to 100")
    places = int(digits)
    if isinstance(value, float):
        return round(value, places)
    return round(value, places)


def _whole(value: Number) -> int:
    if isinstance(value, float) or value.denominator != 1:
        raise ValueError(f"{_short(value)} is not a whole number")
    return value.numerator


def _apply(function: Callable[..., Any]) -> Callable[..., Number]:
    """A function whose wrong number of arguments is a ValueError that says so."""

    def call(*values: Number) -> Any:
        try:
            result = function(*values)
        except TypeError:
            raise ValueError(f"a function does not take {len(values)} numbers") from None
        return _checked(Fraction(result)) if isinstance(result, int | Fraction) else result

    return call


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": _apply(_sqrt),
    "factorial": _apply(_factorial),
    "log": _apply(_log),
    "round": _apply(_round),
    "abs": _apply(abs),
    "floor": _apply(math.floor),
    "ceil": _apply(math.ceil),
    "min": _apply(lambda *all_: min(all_)),
    "max": _apply(lambda *all_: max(all_)),
    "gcd": _apply(lambda *all_: math.gcd(*map(_whole, all_))),
    "mod": _apply(lambda a, b: a % b),
}


def _to_float(value: Number) -> float:
    return float(value)


def _short(value: Number) -> str:
    return f"{_to_float(value):g}"

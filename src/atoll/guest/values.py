"""Python values as JSON and back: how variables and arguments cross between guest and host.

Plain types keep their type (tuples, sets, bytes, dates and big numbers travel with a tag under
the key "$"); everything else arrives as its type's name and its repr. Nothing is ever unpickled.
"""

from __future__ import annotations

import binascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MAX_DEPTH = 100
MAX_ITEMS = 500_000
MAX_BYTES = 24 << 20
MAX_REPR = 10_000
MAX_MESSAGE = 1_000
MAX_COLLISIONS = 100
TAG = "$"

_INT_BITS = 64
_INFINITY = float("inf")
_TIME_TYPES = ("datetime", "date", "time")


class UncrossableError(ValueError):
    """A value is too deep or too large to cross."""


class Opaque:
    """What the receiving side gets for a value that has no plain form: its type and its repr."""

    __slots__ = ("repr", "type_name")

    def __init__(self, type_name: str, text: str) -> None:
        self.type_name = type_name
        self.repr = text

    def __repr__(self) -> str:
        return "<{} {}>".format(self.type_name, self.repr)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Opaque):
            return NotImplemented
        return (self.type_name, self.repr) == (other.type_name, other.repr)

    def __hash__(self) -> int:
        return hash((self.type_name, self.repr))


def encode(
    value: Any, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES, strict: bool = False
) -> Any:
    """`value` as something JSON can carry; ValueError if it is too deep or too large.

    `strict` refuses what would arrive as an Opaque.
    """
    return _Encoder(max_items, max_bytes, strict).encode(value, 0)


class _Encoder:
    def __init__(self, max_items: int, max_bytes: int, strict: bool) -> None:
        self._strict = strict
        self._items_left = self._max_items = max_items
        self._bytes_left = self._max_bytes = max_bytes

    def encode(self, value: Any, depth: int) -> Any:
        self._items_left -= 1
        if self._items_left < 0:
            raise UncrossableError("the value has more than {:,} items".format(self._max_items))
        if depth > MAX_DEPTH:
            raise UncrossableError("the value is nested deeper than {}".format(MAX_DEPTH))
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self._spend(str.__str__(value))
        if type(value).__name__ == "LazyAnswer":
            return self._spend(str(value))
        if isinstance(value, int):
            return _encode_int(int(value))
        if isinstance(value, float):
            number = float(value)
            return number if -_INFINITY < number < _INFINITY else {TAG: "float", "v": repr(number)}
        return self._encode_container(value, depth)

    def _spend(self, data: Any) -> Any:
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise UncrossableError("the value has more than {:,} bytes".format(self._max_bytes))
        return data

    def _encode_container(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return self._encode_dict(value, depth)
        if isinstance(value, list):
            return self._items(value, depth)
        for name, kind in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
            if isinstance(value, kind):
                self._items_left -= 2  # the tag's own brackets and commas
                return {TAG: name, "v": self._items(value, depth)}
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {TAG: "bytes", "v": _base64(self._spend(bytes(value)))}
        if isinstance(value, complex):
            return {TAG: "complex", "v": [repr(value.real), repr(value.imag)]}
        return self._encode_other(value, depth)

    def _items(self, items: Any, depth: int) -> list[Any]:
        return [self.encode(item, depth + 1) for item in items]

    def _encode_dict(self, value: Any, depth: int) -> Any:
        if all(type(key) is str for key in value) and TAG not in value:
            return {key: self.encode(item, depth + 1) for key, item in value.items()}
        self._items_left -= 2 + len(value)
        pairs = [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in value.items()]
        return {TAG: "dict", "v": pairs}

    def _encode_other(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind.__module__ == "datetime" and kind.__name__ in _TIME_TYPES:
            return {TAG: kind.__name__, "v": value.isoformat()}
        if kind.__module__ == "datetime" and kind.__name__ == "timedelta":
            return {TAG: "timedelta", "v": [value.days, value.seconds, value.microseconds]}
        if kind.__module__ == "decimal" and kind.__name__ == "Decimal":
            return {TAG: "decimal", "v": str(value)}
        plain = _array_as_plain(value)
        if plain is not value:
            return self.encode(plain, depth + 1)
        if isinstance(value, Opaque) and not self._strict:
            return {TAG: "object", "type": value.type_name, "v": value.repr}
        if self._strict:
            raise UncrossableError("a {} is no plain value".format(type_name(kind)))
        return {TAG: "object", "type": type_name(kind), "v": short_repr(value)}


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _encode_int(value: int) -> Any:
    if value.bit_length() < _INT_BITS:
        return value
    return {TAG: "int", "v": hex(value)}  # decimal conversion of huge numbers is refused or slow


def _array_as_plain(value: Any) -> Any:
    """A numpy array or scalar as lists, a data frame as a dict of columns, else `value`."""
    home = type(value).__module__.split(".")[0]
    if home not in ("numpy", "pandas"):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "to_dict"):
        return value.to_dict("list")
    return value


def type_name(kind: type) -> str:
    """A class's name as tracebacks show it: without the module for built-ins and own classes."""
    module = kind.__module__
    return (
        kind.__qualname__
        if module in ("builtins", "__main__")
        else module + "." + kind.__qualname__
    )


def short_repr(value: Any) -> str:
    """`repr(value)`, cut, and never raising."""
    try:
        text = repr(value)
    except Exception as exc:
        text = "<unprintable {}: {}>".format(type(value).__name__, type(exc).__name__)
    return text if len(text) <= MAX_REPR else text[:MAX_REPR] + "..."


def short_text(exc: BaseException) -> str:
    """An exception's message, cut, and never raising."""
    try:
        return str(exc)[:MAX_MESSAGE]
    except Exception:
        return "<the message could not be shown>"


def decode(value: Any) -> Any:
    """The Python value that `encode` was given; ValueError for what it never makes."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item) for key, item in value.items()}
    try:
        return _DECODERS[value[TAG]](value)
    except (KeyError, TypeError, AttributeError, ArithmeticError) as exc:
        raise ValueError("not an encoded value: {!r}".format(exc)) from None


def _decode_dict(value: dict[str, Any]) -> dict[Any, Any]:
    pairs = [(decode(key), decode(item)) for key, item in value["v"]]
    _hashable([key for key, _ in pairs])
    return dict(pairs)


def _hashable(items: list[Any]) -> list[Any]:
    """`items` as they are; ValueError if so many share a hash that a set of them takes ages."""
    if len(items) > MAX_COLLISIONS:
        hashes = sorted(map(hash, items))
        if any(a == b for a, b in zip(hashes, hashes[MAX_COLLISIONS:])):
            raise ValueError("more than {} keys with one hash".format(MAX_COLLISIONS))
    return items


def _decode_time(value: dict[str, Any]) -> Any:
    import datetime

    return getattr(datetime, value[TAG]).fromisoformat(value["v"])


def _decode_timedelta(value: dict[str, Any]) -> Any:
    import datetime

    return datetime.timedelta(*value["v"])


def _decode_decimal(value: dict[str, Any]) -> Any:
    import decimal

    return decimal.Decimal(value["v"])


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value["v"], 16),
    "float": lambda value: float(value["v"]),
    "complex": lambda value: complex(float(value["v"][0]), float(value["v"][1])),
    "bytes": lambda value: binascii.a2b_base64(value["v"]),
    "tuple": lambda value: tuple(decode(value["v"])),
    "set": lambda value: set(_hashable(decode(value["v"]))),
    "frozenset": lambda value: frozenset(_hashable(decode(value["v"]))),
    "dict": _decode_dict,
    "datetime": _decode_time,
    "date": _decode_time,
    "time": _decode_time,
    "timedelta": _decode_timedelta,
    "decimal": _decode_decimal,
    "object": lambda value: Opaque(str(value["type"]), str(value["v"])),
}

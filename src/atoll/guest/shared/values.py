"""Python values as JSON and back: how variables and arguments cross between guest and host.

Plain types keep their type: tuples, sets, bytes, dates and big numbers travel with a tag under
the key "$"; see `kinds` and `arrays` for the larger ones. A value of another type is refused, or
arrives as an Opaque with its type's name and its repr. Nothing is ever unpickled.
"""

from __future__ import annotations

from . import arrays, kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .messages import Tagged

MAX_DEPTH = 100
MAX_ITEMS = 500_000
MAX_BYTES = 24 << 20
MAX_REPR = 10_000
MAX_MESSAGE = 1_000
MAX_COLLISIONS = 100
MAX_FRAME_COST = 25_000
"""Arrays and columns in one value, by what they take: see `arrays.decode_frame`."""
SHOWN_REPR = 200
TAG = "$"
NOT_PLAIN = "not plain data: convert it in the sandbox, or write it to a file"
TOO_LARGE = "too large for a result: ask for a part, try get_variable('_'), or write it to a file"

_INT_BITS = 64
_INFINITY = float("inf")
_LIBRARIES = ("numpy", "pandas")
_ADVICE = {
    "generator": "list(it)",
    "map": "list(it)",
    "filter": "list(it)",
    "zip": "list(it)",
    "dict_keys": "list(it)",
    "dict_values": "list(it)",
    "dict_items": "list(it)",
    "deque": "list(it)",
}


class UncrossableError(ValueError):
    """A value is too deep or too large to cross."""


class Opaque:
    """Stands for a value that cannot cross: its type's name, its repr, and why it did not."""

    __slots__ = ("reason", "repr", "type_name")

    def __init__(self, type_name: str, text: str, reason: str = NOT_PLAIN) -> None:
        self.type_name = type_name
        self.repr = text
        self.reason = reason

    def __repr__(self) -> str:
        text = self.repr if len(self.repr) <= SHOWN_REPR else self.repr[:SHOWN_REPR] + "..."
        return "<Opaque {}: {} ({})>".format(self.type_name, text, self.reason)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Opaque):
            return NotImplemented
        return (self.type_name, self.repr) == (other.type_name, other.repr)

    def __hash__(self) -> int:
        return hash((self.type_name, self.repr))


def encode(
    value: Any,
    max_items: int = MAX_ITEMS,
    max_bytes: int = MAX_BYTES,
    strict: bool = False,
    typed: bool = False,
) -> Any:
    """Return `value` as JSON can carry it; UncrossableError if it is too deep or too large.

    `strict` refuses a value that would arrive as an Opaque. `typed` sends arrays and frames as
    such; without it they arrive as lists and dicts of columns.
    """
    if type(value) is int and value.bit_length() < _INT_BITS:  # the commonest: no encoder is made
        return value
    return _Encoder(max_items, max_bytes, strict, typed).encode(value, 0)


class _Encoder:
    def __init__(self, max_items: int, max_bytes: int, strict: bool, typed: bool) -> None:
        self._strict, self._typed = strict, typed
        self._items_left = self._max_items = max_items
        self._bytes_left = self._max_bytes = max_bytes

    def encode(self, value: Any, depth: int) -> Any:
        self._items_left -= 1
        if self._items_left < 0:
            raise UncrossableError("the value has more than {:,} items".format(self._max_items))
        if depth > MAX_DEPTH:
            raise UncrossableError(
                "the value is nested deeper than {}, or contains itself".format(MAX_DEPTH)
            )
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self._spend(str.__str__(value))
        if type(value).__name__ == "LazyAnswer":
            return self._spend(str(value))
        if isinstance(value, int):
            return _encode_int(int(value))
        if isinstance(value, float) and not (self._typed and _library(type(value))):
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
            return {TAG: "bytes", "v": kinds.base64_of(self._spend(bytes(value)))}
        if isinstance(value, complex) and not (self._typed and _library(type(value))):
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
        encoded = kinds.encode(value, kind)
        if encoded is not None:
            self._spend(str(encoded["v"]))
            return encoded
        library = _library(kind)
        if library == "pandas":
            moment = arrays.encode_moment(value)
            if moment is not None:
                return moment
        if library:
            return self._encode_array(value, depth)
        return self._opaque(value)

    def _encode_array(self, value: Any, depth: int) -> Any:
        if self._typed:
            try:
                return arrays.encode(value, self._spend, lambda item: self.encode(item, depth + 2))
            except arrays.NotPlainError as exc:
                if self._strict:
                    raise UncrossableError(str(exc)) from None
        if getattr(value, "size", 0) > self._items_left:  # told before a list is made of it
            raise UncrossableError("the value has more than {:,} items".format(self._max_items))
        plain = _array_as_plain(value)
        return self.encode(plain, depth + 1) if plain is not value else self._opaque(value)

    def _opaque(self, value: Any) -> Tagged:
        if self._strict:
            raise UncrossableError(_refusal(type(value)))
        if isinstance(value, Opaque):
            name, text, why = value.type_name, value.repr, value.reason
        else:
            name, text, why = type_name(type(value)), short_repr(value), NOT_PLAIN
        return {TAG: "object", "type": name, "v": text, "why": why}


def _library(kind: type) -> str:
    """Return "numpy" or "pandas" for a class of theirs, and nothing for another."""
    try:
        home = kind.__module__.split(".")[0]
    except Exception:  # a class of the guest's may say that its module is anything
        return ""
    return home if home in _LIBRARIES else ""


def _refusal(kind: type) -> str:
    """Say that a value of this type cannot cross, and what would."""
    name = type_name(kind)
    if getattr(kind, "__dataclass_fields__", None):
        return "a value of type {} is not plain data: take dataclasses.asdict(it)".format(name)
    if any(base.__name__ == "Enum" for base in kind.__mro__):
        return "a value of type {} is not plain data: take its .value".format(name)
    advice = _ADVICE.get(kind.__name__)
    text = "a value of type {} is not plain data".format(name)
    return text + (": take " + advice if advice else "")


def _encode_int(value: int) -> Any:
    if value.bit_length() < _INT_BITS:
        return value
    return {TAG: "int", "v": hex(value)}  # decimal conversion of huge numbers is refused or slow


def _array_as_plain(value: Any) -> Any:
    """Return lists for an array, a number for a scalar, a dict of columns for a frame."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "to_dict"):
        return value.to_dict("list")
    return value


def type_name(kind: type) -> str:
    """Return a class's name as tracebacks show it: without `builtins` and `__main__`."""
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
    """Return an exception's message, cut to a limit; never raise."""
    try:
        return str(exc)[:MAX_MESSAGE]
    except Exception:
        return "<the message could not be shown>"


def decode(value: Any) -> Any:
    """Return the Python value that `encode` was given; ValueError for anything else."""
    return _Decoder(MAX_FRAME_COST).decode(value) if isinstance(value, (list, dict)) else value


def decode_plain(value: Any) -> Any:
    """Return the value like `decode`, but refuse arrays and frames: only variables send those."""
    return _Decoder(0).decode(value) if isinstance(value, (list, dict)) else value


def is_larger(encoded: Any, items: int, size: int) -> bool:
    """Return whether an encoded value has more than `items` values, or `size` bytes of text.

    It looks no further than that, so that a value can be refused before it is decoded.
    """
    waiting = [encoded]
    while waiting:
        value = waiting.pop()
        items -= 1
        if isinstance(value, str):
            size -= len(value)
        elif isinstance(value, (list, dict)):
            if len(value) > items:
                return True
            waiting += value.values() if isinstance(value, dict) else value
        if items < 0 or size < 0:
            return True
    return False


class _Decoder:
    """Decodes one value. SECURITY: a small message must not become a large or slow value."""

    def __init__(self, frame_cost: int) -> None:
        self._left = frame_cost

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if TAG not in value:
            return {key: self.decode(item) for key, item in value.items()}
        try:
            return _DECODERS[value[TAG]](value, self)
        except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError) as exc:
            raise ValueError("not an encoded value: {!r}".format(exc)) from None

    def items(self, value: Tagged) -> list[Any]:
        """Return the items of a container: of a list, since a range could be of any length."""
        if not isinstance(value["v"], list):
            raise TypeError("a container without a list")
        return [self.decode(item) for item in value["v"]]

    def spend(self, cost: int) -> None:
        """Count what numpy and pandas are asked to make, which takes them long."""
        self._left -= cost
        if self._left < 0:
            raise ValueError("too many arrays or columns: write them to a file")


def _decode_dict(value: Tagged, decoder: _Decoder) -> dict[Any, Any]:
    pairs = [(decoder.decode(key), decoder.decode(item)) for key, item in value["v"]]
    _hashable([key for key, _ in pairs])
    return dict(pairs)


def _hashable(items: list[Any]) -> list[Any]:
    """Return `items`; ValueError if so many share a hash that making a set would take very long."""
    if len(items) > MAX_COLLISIONS:
        hashes = sorted(map(hash, items))
        if any(a == b for a, b in zip(hashes, hashes[MAX_COLLISIONS:])):
            raise ValueError("more than {} keys with one hash".format(MAX_COLLISIONS))
    return items


def _decode_array(value: Tagged, decoder: _Decoder) -> Any:
    decoder.spend(1)
    return arrays.decode_array(value)


def _decode_scalar(value: Tagged, decoder: _Decoder) -> Any:
    decoder.spend(1)
    return arrays.decode_scalar(value, decoder.decode)


def _decode_frame(value: Tagged, decoder: _Decoder) -> Any:
    return arrays.decode_frame(value, decoder.decode, _hashable, decoder.spend)


def _decode_opaque(value: Tagged, _decoder: _Decoder) -> Opaque:
    why = str(value.get("why", NOT_PLAIN))[:MAX_MESSAGE]
    return Opaque(str(value["type"]), str(value["v"]), why)


def _alone(decode_one: Callable[[Any], Any]) -> Callable[[Any, _Decoder], Any]:
    """Return the decoder of a kind that holds no other values."""
    return lambda value, _: decode_one(value)


_DECODERS: dict[str, Callable[[Any, _Decoder], Any]] = {
    "int": lambda value, _: int(value["v"], 16),
    "float": lambda value, _: float(value["v"]),
    "complex": lambda value, _: complex(float(value["v"][0]), float(value["v"][1])),
    "bytes": lambda value, _: kinds.bytes_of(value["v"]),
    "tuple": lambda value, decoder: tuple(decoder.items(value)),
    "set": lambda value, decoder: set(_hashable(decoder.items(value))),
    "frozenset": lambda value, decoder: frozenset(_hashable(decoder.items(value))),
    "dict": _decode_dict,
    "array": _decode_array,
    "scalar": _decode_scalar,
    "object": _decode_opaque,
}
for _tag in ("timestamp", "pandas.timedelta", "missing"):
    _DECODERS[_tag] = _alone(arrays.decode_moment)
for _tag in ("frame", "series", "index"):
    _DECODERS[_tag] = _decode_frame
_DECODERS.update({_tag: _alone(_one) for _tag, _one in kinds.DECODERS.items()})


def forbid(*tags: str) -> None:
    """Refuse values of these kinds in this process from now on."""

    def refuse(value: Tagged, _decoder: _Decoder) -> Any:
        raise ValueError("this sandbox takes no value of the kind {!r}".format(value[TAG]))

    _DECODERS.update(dict.fromkeys(tags, refuse))

r"""Plain values as text for a model: TOON or compact JSON, whichever is shorter.

TOON writes a table's column names once. On nested rows it is longer than JSON, so both are made.
Values that neither can express are marked, never dropped: {"$set": [1, 2]}, {"$bytes": "PNG\x00"},
{"$dict": [[1, "a"]]} for keys that are not str, {"$object": "module.Type", "repr": "..."}. Tuples
become lists, dates and decimals become text, and 1.0 is 1 in TOON.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import reprlib
from typing import Any

from atoll.guest.shared import values

LONGEST_INT_BITS = 4096
"""Larger numbers are shown in base 16: Python refuses to write out the largest in base 10."""
_TIMES = (dt.date, dt.time)
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


def to_text(value: Any, *, toon: bool = True) -> str:
    """Return the shorter of TOON and compact JSON; JSON if `toon` is false or not installed."""
    plain = _whole(value)
    as_json = _as_json(plain.data)
    as_toon = _as_toon(plain) if toon else None
    return as_json if as_toon is None or len(as_toon) >= len(as_json) else as_toon


def _as_json(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # UTF-8 cannot encode a lone surrogate; in a JSON string \udxxx means the same
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _as_toon(plain: _Plain) -> str | None:
    """Return TOON; None if it is not installed, or "NaN" could be both a text and a number."""
    if plain.not_finite and plain.says_not_finite:
        return None
    try:
        import toons  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    try:
        text: str = toons.dumps(_spelled(plain.data) if plain.not_finite else plain.data)
    except (TypeError, ValueError):  # such as a lone surrogate
        return None
    return text or None  # TOON writes an empty dict as "", which says nothing to a model


def _spelled(data: Any) -> Any:
    """Return the data with NaN and infinities as words: TOON would write them as null."""
    if isinstance(data, dict):
        return {key: _spelled(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_spelled(item) for item in data]
    return json.dumps(data) if isinstance(data, float) and not math.isfinite(data) else data


def _whole(value: Any) -> _Plain:
    """Return the whole value, or if it is too deep or too large, its type, start and the reason."""
    plain = _Plain()
    try:
        plain.data = plain.make(value, 0)
    except (ValueError, RecursionError) as exc:
        cut = {"$cut": str(exc), "type": values.type_name(type(value)), "repr": _glance(value)}
        plain.data = cut
    return plain


def _glance(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception as exc:  # noqa: BLE001 - somebody's __repr__
        return f"<unprintable: {type(exc).__name__}>"


class _Plain:
    """Converts one value to JSON data, and records whether it has NaN or infinities."""

    def __init__(self) -> None:
        self.data: Any = None
        self.not_finite = self.says_not_finite = False
        self._left = values.MAX_ITEMS

    def make(self, value: Any, depth: int) -> Any:
        """Return the value and everything in it as JSON data."""
        self._left -= 1
        if self._left < 0:
            raise values.UncrossableError(f"the value has more than {values.MAX_ITEMS:,} items")
        if depth > values.MAX_DEPTH:
            raise values.UncrossableError(f"the value is nested deeper than {values.MAX_DEPTH}")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            self.says_not_finite |= value in _NOT_FINITE
            return str.__str__(value)
        if isinstance(value, int):
            return _int(int(value))
        if isinstance(value, float):
            self.not_finite |= not math.isfinite(value)
            return float(value)
        return self._container(value, depth)

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return self._dict(value, depth)
        if isinstance(value, list | tuple):
            return self._items(value, depth)
        if isinstance(value, set | frozenset):
            return {"$set": self._items(_in_order(value), depth)}
        if isinstance(value, bytes | bytearray):
            return {"$bytes": repr(bytes(value))[2:-1]}
        return self._other(value, depth)

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str.__str__(key): self.make(item, depth + 1) for key, item in value.items()}
        return {"$dict": [self._items(pair, depth + 1) for pair in value.items()]}

    def _items(self, items: Any, depth: int) -> list[Any]:
        return [self.make(item, depth + 1) for item in items]

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, _TIMES):
            return value.isoformat()
        if isinstance(value, decimal.Decimal | dt.timedelta):
            return str(value)
        if isinstance(value, complex):
            return {"$complex": str(value)}
        crossed = values.decode(values.encode(value))  # arrays and frames come out as lists
        if isinstance(crossed, values.Opaque):
            return {"$object": crossed.type_name, "repr": crossed.repr}
        return self.make(crossed, depth + 1)


def _int(value: int) -> Any:
    return value if value.bit_length() <= LONGEST_INT_BITS else {"$int": hex(value)}


def _in_order(items: Any) -> list[Any]:
    """Return the items sorted, so that equal sets give equal texts."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=repr)

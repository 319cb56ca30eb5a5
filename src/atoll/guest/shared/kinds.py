"""Dates, decimals, paths, bytes and the like as tagged JSON and back. Used by `values`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .messages import Tagged

TAG = "$"
MAX_DIGITS = 2_000
"""Hexadecimal digits of a fraction's numbers: reducing longer ones would take very long."""
_known_zones: list[frozenset[str]] = []
"""The names of all time zones, once they were read: to look for each unknown one takes long."""


def encode(value: Any, kind: type) -> Tagged | None:
    """Return the tagged form of a date, time, decimal, fraction, UUID, path or range, or None."""
    try:
        encoder = _ENCODERS.get(kind.__module__ + "." + kind.__qualname__)
    except TypeError:  # a class may say that its module is not a str
        return None
    return encoder(value) if encoder is not None else None


def base64_of(data: Any) -> str:
    """Return bytes as text. Few guests send or get any: the module is loaded for those."""
    import binascii

    return binascii.b2a_base64(data, newline=False).decode("ascii")


def bytes_of(text: Any) -> bytes:
    """Return the bytes that `base64_of` made a text of."""
    import binascii

    return binascii.a2b_base64(text)


def _datetime(value: Any) -> Tagged:
    encoded = {TAG: "datetime", "v": value.isoformat()}
    zone = getattr(value.tzinfo, "key", None)
    if isinstance(zone, str):
        encoded["zone"] = zone
    return encoded


def _path(value: Any) -> Tagged:
    return {TAG: "path", "v": str(value), "pure": not hasattr(value, "open")}


def _fraction(value: Any) -> Tagged:
    parts = [hex(value.numerator), hex(value.denominator)]
    if max(map(len, parts)) > MAX_DIGITS:
        raise ValueError("the fraction has more than {:,} digits".format(MAX_DIGITS))
    return {TAG: "fraction", "v": parts}


def _tagged(name: str, plain: Callable[[Any], Any]) -> Callable[[Any], Tagged]:
    return lambda value: {TAG: name, "v": plain(value)}


_ENCODERS: dict[str, Callable[[Any], Tagged]] = {
    "datetime.datetime": _datetime,
    "datetime.date": _tagged("date", lambda value: value.isoformat()),
    "datetime.time": _tagged("time", lambda value: value.isoformat()),
    "datetime.timedelta": _tagged(
        "timedelta", lambda value: [value.days, value.seconds, value.microseconds]
    ),
    "decimal.Decimal": _tagged("decimal", str),
    "fractions.Fraction": _fraction,
    "uuid.UUID": _tagged("uuid", lambda value: value.hex),
    "builtins.range": _tagged(
        "range", lambda value: [hex(value.start), hex(value.stop), hex(value.step)]
    ),
}
for _name in ("PosixPath", "PurePosixPath"):
    for _module in ("pathlib", "pathlib._local"):  # its home on Python 3.13
        _ENCODERS[_module + "." + _name] = _path


def _decode_datetime(value: Tagged) -> Any:
    import datetime

    moment = datetime.datetime.fromisoformat(value["v"])
    return in_zone(moment, value["zone"]) if "zone" in value else moment


def in_zone(moment: Any, zone: Any) -> Any:
    """Return an aware datetime in a named time zone; as it was if the zone is not known here."""
    if not isinstance(zone, str) or len(zone) > 64:
        raise ValueError("a time zone must be a short str")
    if zone not in _zones():
        return moment
    import zoneinfo

    try:
        return moment.astimezone(zoneinfo.ZoneInfo(zone))
    except (KeyError, OSError, ValueError):
        return moment


def _zones() -> frozenset[str]:
    if not _known_zones:
        try:
            import zoneinfo

            _known_zones.append(frozenset(zoneinfo.available_timezones()))
        except (ImportError, OSError):
            _known_zones.append(frozenset())
    return _known_zones[0]


def _decode_time(value: Tagged) -> Any:
    import datetime

    return getattr(datetime, value[TAG]).fromisoformat(value["v"])


def _decode_timedelta(value: Tagged) -> Any:
    import datetime

    return datetime.timedelta(*value["v"])


def _decode_decimal(value: Tagged) -> Any:
    import decimal

    return decimal.Decimal(value["v"])


def _decode_fraction(value: Tagged) -> Any:
    import fractions

    above, below = value["v"]
    if max(len(above), len(below)) > MAX_DIGITS:
        raise ValueError("a fraction with too many digits")
    return fractions.Fraction(int(above, 16), int(below, 16))


def _decode_uuid(value: Tagged) -> Any:
    import uuid

    return uuid.UUID(value["v"])


def _decode_path(value: Tagged) -> Any:
    import pathlib

    kind = pathlib.PurePosixPath if value["pure"] else pathlib.Path
    return kind(value["v"])


DECODERS: dict[str, Callable[[Tagged], Any]] = {
    "datetime": _decode_datetime,
    "date": _decode_time,
    "time": _decode_time,
    "timedelta": _decode_timedelta,
    "decimal": _decode_decimal,
    "fraction": _decode_fraction,
    "uuid": _decode_uuid,
    "path": _decode_path,
    "range": lambda value: range(*(int(number, 16) for number in value["v"])),
}

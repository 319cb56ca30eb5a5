"""Values that options accept: sizes, numbers of seconds, counts; each says what it wants.

A message starts with "must": the parser puts the option's name in front of it.
"""

from __future__ import annotations

import argparse
import os
import re

from atoll.errors import ConfigError

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MAX_PORT = 65535
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?\Z", re.IGNORECASE)
_NAME = re.compile(r"[^=\0]+\Z")


def size(text: str) -> int | None:
    """Return the bytes in `512M`, `2G` or a plain number; None for `none`."""
    if text.lower() == "none":
        return None
    match = _SIZE.match(text)
    value = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if value < 1:
        raise _wrong("a size such as 512M, 2G, a number of bytes, or none", text)
    return value


def seconds(text: str) -> float:
    """Return a number of seconds greater than 0."""
    return _number(text, "a number of seconds greater than 0", least=1e-9, most=1e12)


def dollars(text: str) -> float:
    """Return a number of dollars greater than 0."""
    return _number(text, "a number of dollars greater than 0", least=1e-6, most=1e6)


def temperature(text: str) -> float:
    """Return a number from 0 to 2."""
    return _number(text, "a number from 0 to 2", least=0, most=2)


def depth(text: str) -> int:
    """Return a whole number, 0 or greater."""
    if not text.isdecimal():
        raise _wrong("a whole number, 0 or greater", text)
    return int(text)


def count(text: str) -> int:
    """Return a whole number greater than 0."""
    if not text.isdecimal() or int(text) == 0:
        raise _wrong("a whole number greater than 0", text)
    return int(text)


def port(text: str) -> int:
    """Return a number of a port; 0 means any that is free."""
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise _wrong(f"a whole number from 0 to {MAX_PORT}", text)
    return int(text)


def count_or_none(text: str) -> int | None:
    """Return a whole number greater than 0; None for `none`."""
    return None if text.lower() == "none" else count(text)


def variable(text: str) -> tuple[str, str | None]:
    """Return name and value of `NAME=VALUE`; the value is None for `NAME` alone."""
    name, equals, value = text.partition("=")
    if not _NAME.match(name) or "\0" in value:
        raise _wrong("NAME=VALUE, or NAME to pass on a variable of this environment", text)
    return name, value if equals else None


def mount(text: str) -> tuple[str, str, bool]:
    """Return source, target and whether it is writable of `SRC:DST[:rw]`."""
    parts = text.split(":")
    mode = parts.pop() if parts[-1] in ("ro", "rw") else "ro"
    source, target = ":".join(parts[:-1]), parts[-1] if parts else ""
    if not source or not target.startswith("/"):
        raise _wrong("SRC:DST or SRC:DST:rw, where DST is an absolute path", text)
    return source, target, mode == "rw"


def _number(text: str, what: str, *, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise _wrong(what, text)
    return value


def _wrong(what: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {what}, got {text!r}")


def variables(args: argparse.Namespace) -> dict[str, str]:
    """Return the variables that --env sets or passes on."""
    return dict(_variable(*pair) for pair in getattr(args, "env", ()))


def _variable(name: str, value: str | None) -> tuple[str, str]:
    if value is None and name not in os.environ:
        raise ConfigError(f"--env {name}: the variable is not set here. Use --env {name}=VALUE")
    return name, os.environ[name] if value is None else value

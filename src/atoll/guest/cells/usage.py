"""The error of a magic that cannot be run here; its message says what to do."""

from __future__ import annotations


class UsageError(Exception):
    """A magic is unknown, wrongly used, or not possible in this sandbox."""


UsageError.__module__ = "builtins"

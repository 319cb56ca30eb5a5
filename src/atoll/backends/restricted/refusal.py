"""The exception for operations that the backend refuses, with what to do instead."""

from __future__ import annotations

ADVICE = 'use a jailed backend for that: create_sandbox(backend="native")'


class GuardError(PermissionError):
    """The `restricted` backend refuses an operation."""

    __module__ = "builtins"  # as guest code sees it


def refused(what: str, advice: str = ADVICE) -> GuardError:
    """Return the error for `what`."""
    return GuardError(f"{what} is not available in the backend restricted; {advice}")

"""How the backend tells guest code that it may not have something: an exception with what to do."""

from __future__ import annotations

ADVICE = 'use a jailed backend for that: create_sandbox(backend="native")'


class GuardError(PermissionError):
    """Something that the `restricted` backend does not hand out."""

    __module__ = "builtins"  # as guest code sees it


def refused(what: str, advice: str = ADVICE) -> GuardError:
    """The error for `what`."""
    return GuardError(f"{what} is not available in the backend restricted; {advice}")

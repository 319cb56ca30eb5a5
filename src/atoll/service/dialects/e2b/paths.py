"""Paths as E2B's clients write them, and where they are in a sandbox."""

from __future__ import annotations

import posixpath

from atoll.jail.supervisor.spec import SHOWN_FOLDERS, WORK_ALIAS, WORK_FOLDER
from atoll.service.http.problems import Problem

HOME = WORK_FOLDER
THEIR_HOME = "/home/user"
"""E2B's home folder: another name of ours in requests, but not for code in the sandbox."""
LONGEST_PATH = 4096
_REACHED = (*SHOWN_FOLDERS, WORK_ALIAS)


def absolute(path: str) -> str:
    """Return the absolute path in the sandbox; 400 for an invalid path."""
    if len(path) > LONGEST_PATH:
        raise Problem(400, "invalid", f"a path has at most {LONGEST_PATH:,} characters")
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    whole = posixpath.normpath(posixpath.join(HOME, path))
    if whole == THEIR_HOME or whole.startswith(f"{THEIR_HOME}/"):
        whole = HOME + whole[len(THEIR_HOME) :]
    return whole


def located(path: str) -> str:
    """Return the absolute path in the sandbox; 400 if it cannot be reached from outside."""
    whole = absolute(path)
    if "\0" in whole or not any(f"{whole}/".startswith(f"{root}/") for root in _REACHED):
        known = ", ".join((THEIR_HOME, *_REACHED))
        raise Problem(400, "invalid", f"{path!r:.200} is not in a folder of the sandbox: {known}")
    return whole

"""Files of a project that other programs run or obey: found in a folder, before and after a run.

A repository's hooks and settings run as soon as its owner types `git status`; an editor starts what
its settings name. So they stay read-only in a writable folder.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = (
    ".gitconfig",
    ".gitmodules",
    ".bashrc",
    ".bash_profile",
    ".profile",
    ".zshrc",
    ".zprofile",
    ".ripgreprc",
    ".mcp.json",
)
FOLDERS = (".vscode", ".idea", ".claude/commands", ".claude/agents")
OWN = (".atoll.toml",)
"""Our own, which sandbox-runtime does not know."""
HOOKS, CONFIG = "hooks", "config"
DEPTH = 3
"""Folders deep that they are looked for."""
_SKIPPED = frozenset({"node_modules"})
_TOPS = {name.partition("/")[0] for name in FOLDERS}


def find(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield those that are in a folder, or in folders below it; links are not entered."""
    yield from _in(folder)
    if depth <= 0:
        return
    for name in _inner_folders(folder):
        yield from find(folder / name, depth - 1)


def named(folder: Path) -> list[Path]:
    """Return all of them as sandbox-runtime denies them in a folder, whether they exist or not."""
    return [folder / name for name in (*FILES, *FOLDERS)] + list(_of_git(folder / ".git"))


def _in(folder: Path) -> Iterator[Path]:
    for name in (*FILES, *FOLDERS, *OWN):
        if os.path.lexists(folder / name):
            yield folder / name
    yield from _of_git(folder / ".git")


def _of_git(git: Path) -> Iterator[Path]:
    """Yield a repository's hooks and settings, whether they exist or not, and its submodules'.

    In a submodule or worktree `.git` is a file with the way to the repository: it is yielded.
    """
    try:
        kind = os.stat(git).st_mode
    except OSError:
        return
    if not stat.S_ISDIR(kind):
        yield git
        return
    yield git / HOOKS
    yield git / CONFIG
    yield from _of_submodules(git / "modules", DEPTH)


def _of_submodules(folder: Path, depth: int) -> Iterator[Path]:
    for name in _inner_folders(folder):
        if os.path.lexists(folder / name / "HEAD"):
            yield from _of_git(folder / name)
        elif depth:
            yield from _of_submodules(folder / name, depth - 1)


def _inner_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, but for those that are protected as a whole."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(name for name in found if name not in _SKIPPED | _TOPS and name != ".git")

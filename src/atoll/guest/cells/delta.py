"""What a cell did to the working folder: files created and modified, with their sizes."""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    Snapshot = dict[str, tuple[int, int, int]]

MAX_FILES = 10_000
MAX_FOLDERS = 2_000
MAX_NAME_BYTES = 1 << 20
SETTLED_NS = 50_000_000
"""The kernel's clock for files ticks every 1 to 10 ms: two changes can have the same time."""
IGNORED_FOLDERS = frozenset({"__pycache__"})
IGNORED_FILES = frozenset({"user_code.py"})


def scan(root: str) -> Snapshot:
    """Return (size, mtime, inode) of every regular file below `root`; follow no link."""
    result: Snapshot = {}
    folders, visited = [""], 0
    while folders and len(result) < MAX_FILES and visited < MAX_FOLDERS:
        folder = folders.pop()
        visited += 1
        try:
            with os.scandir(root + "/" + folder if folder else root) as entries:
                for entry in entries:
                    _note(entry, folder, folders, result)
        except OSError:
            continue  # gone meanwhile, or closed to us: it is not ours to report
    return result


def changed(root: str) -> int | None:
    """Return when a folder's list of entries last changed, by a time that no program can set."""
    try:
        return os.stat(root).st_ctime_ns
    except OSError:
        return None


def empty_since(root: str) -> int | None:
    """Return when an empty folder was last changed; None if it is not empty.

    None also if that was just now: a change that follows might have the same time.
    """
    at = changed(root)
    if at is None or time.time_ns() - at < SETTLED_NS:
        return None
    try:
        with os.scandir(root) as entries:
            return at if next(entries, None) is None else None
    except OSError:
        return None


def _note(entry: os.DirEntry[str], folder: str, folders: list[str], snapshot: Snapshot) -> None:
    path = folder + "/" + entry.name if folder else entry.name
    if entry.is_dir(follow_symlinks=False):
        if entry.name not in IGNORED_FOLDERS:
            folders.append(path)
        return
    info = entry.stat(follow_symlinks=False)
    if len(snapshot) < MAX_FILES and stat.S_ISREG(info.st_mode) and path not in IGNORED_FILES:
        snapshot[path] = (info.st_size, info.st_mtime_ns, info.st_ino)


def compare(before: Snapshot, after: Snapshot) -> dict[str, list[list[object]]]:
    """Return files created and modified between two scans, as sorted [path, size]."""
    if before == after:
        return {"created": [], "modified": []}
    created = [[path, now[0]] for path, now in after.items() if path not in before]
    modified = [[path, now[0]] for path, now in after.items() if before.get(path, now) != now]
    return {"created": _listed(created), "modified": _listed(modified)}


def _listed(files: list[list[object]]) -> list[list[object]]:
    """Sort files, and leave out those that an answer has no room for."""
    room, kept = MAX_NAME_BYTES, []
    for file in sorted(files):
        room -= len(str(file[0]))
        if room < 0:
            break
        kept.append(file)
    return kept

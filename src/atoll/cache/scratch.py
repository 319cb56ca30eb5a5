"""Scratch folders of a store: removed at the end of a build, or after the death of its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cache.locks import opened
from atoll.jail.walls.remove import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_checked: set[Path] = set()
"""Folders that were made, or checked to be this user's."""


def refusal(folder: Path, inner: Iterable[str]) -> str:
    """Make a folder with these in it; return why it cannot be used, or an empty text."""
    if folder in _checked and folder.is_dir():
        return ""
    try:
        for path in (folder, *(folder / name for name in inner)):
            if not path.is_dir():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as exc:
        return f"{folder} cannot be used: {exc.strerror}"
    if owner != os.geteuid():
        return f"{folder} belongs to another user"
    _checked.add(folder)
    return ""


@contextlib.contextmanager
def scratch_folder(building: Path) -> Iterator[Path]:
    """Yield a folder for one build, removed at its end; first remove those of dead processes."""
    sweep(building)
    folder = Path(tempfile.mkdtemp(prefix="new-", dir=building))
    with opened(f"{folder}.lock") as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            if folder.exists():
                folder.chmod(0o700)
                remove_tree(str(folder))
            os.unlink(f"{folder}.lock")


def set_aside(folder: Path, building: Path) -> Path:
    """Move a folder out of the store, so that others find it whole or not at all.

    The caller removes the result with `remove` after it has released its lock.
    """
    gone = building / f"removed-{folder.name}-{os.getpid()}-{os.urandom(4).hex()}"
    folder.chmod(0o755)  # a folder must be writable to be moved
    return folder.rename(gone)


def remove(gone: Path) -> None:
    """Remove a folder that was set aside."""
    with contextlib.suppress(FileNotFoundError):  # another process may sweep it away
        remove_tree(str(gone))


def sweep(building: Path) -> None:
    """Remove the folders of dead processes, whose locks are free."""
    for lock in building.glob("*.lock"):
        with contextlib.suppress(OSError), opened(str(lock)) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = lock.with_suffix("")
            if left.is_dir():
                left.chmod(0o700)
                remove_tree(str(left))
            lock.unlink()
    for left in building.glob("removed-*"):
        with contextlib.suppress(OSError):
            remove_tree(str(left))

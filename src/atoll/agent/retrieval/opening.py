"""Opens the index of a folder: creates it, rebuilds a damaged one, deletes unused ones."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from typing import TYPE_CHECKING

from atoll.agent.retrieval.store import Store
from atoll.config import cache_folder
from atoll.errors import IndexDamagedError, RetrievalError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME, _LOCK = "index.db", "lock"
_UNUSED_SECONDS = 30 * 24 * 3600
_ADVICE = "set ATOLL_CACHE to a folder of yours"


def private_folder(folder: Path) -> Path:
    """Return the folder, created if needed, with mode 0700; RetrievalError if it is another's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as exc:
        raise RetrievalError(f"no folder for the index: {exc}: {_ADVICE}") from None
    if facts.st_uid != os.geteuid():
        raise RetrievalError(f"{folder} belongs to another user: {_ADVICE}")
    if facts.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def index_folder(root: str | os.PathLike[str]) -> Path:
    """Return the default folder of an index, and delete old indices beside it."""
    everything = private_folder(cache_folder() / "retrieval")
    key = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    _forget_unused(everything)
    return everything / key


def open_store(folder: Path, max_bytes: int, *, suspect: bool = False) -> Store:
    """Open the index in a folder; with `suspect`, check all of it for damage first."""
    with _locked(private_folder(folder)):
        try:
            return _opened(folder, max_bytes, suspect=suspect)
        except IndexDamagedError:
            for ending in ("", "-wal", "-shm"):
                (folder / (_NAME + ending)).unlink(missing_ok=True)
            return _opened(folder, max_bytes, suspect=False)


def _opened(folder: Path, max_bytes: int, *, suspect: bool) -> Store:
    path = folder / _NAME
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    store = Store(path, max_bytes)
    try:
        if suspect:
            store.check()
    except BaseException:
        store.close()
        raise
    return store


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder while the index is checked; the lock file's time says when it was last used."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(lock)
        yield
    finally:
        os.close(lock)


def _forget_unused(everything: Path) -> None:
    for lock in everything.glob(f"*/{_LOCK}"):
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(lock.parent)

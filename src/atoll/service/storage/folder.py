"""The folder of one service: its lock, and errors that name its fault."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; ConfigError if another service has it.

    Two services in one folder would take each other's sessions for lost ones.
    """
    fd = _opened(folder)
    try:
        _lock(fd, folder)
        yield
    finally:
        os.close(fd)


def prepare(folder: Path) -> None:
    """Make the folder, for this user alone; ConfigError if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
    except OSError as exc:
        raise _unusable(folder, exc) from None


def _opened(folder: Path) -> int:
    prepare(folder)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(folder / "lock", flags, 0o600)
    except OSError as exc:
        raise _unusable(folder, exc) from None


def _lock(fd: int, folder: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        who = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        text = f"another service (process {who}) uses the folder {folder}"
        raise ConfigError(f"{text}: stop it, or name another with --folder") from None
    except OSError as exc:
        raise _unusable(folder, exc) from None


def _unusable(folder: Path, exc: OSError) -> ConfigError:
    why = exc.strerror or str(exc)
    return ConfigError(f"cannot write to the folder {folder}: {why}. Name another with --folder")

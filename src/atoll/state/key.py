"""The key that saved states are signed with: ATOLL_STATE_KEY, or one made once for each user."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from atoll.config import state_key_from_environment
from atoll.errors import StateError

KEY_BYTES = 32


def state_key() -> bytes:
    """Return the key that signs states."""
    return state_key_from_environment() or _users_key(default_path())


def default_path() -> Path:
    """Return the path of the user's own key."""
    try:
        return Path.home() / ".local" / "share" / "atoll" / "state.key"
    except RuntimeError:
        raise StateError("this user has no home for a key: set ATOLL_STATE_KEY") from None


def _users_key(path: Path) -> bytes:
    try:
        if not path.exists():
            _create(path)
        return _read(path)
    except OSError as exc:
        hint = "set ATOLL_STATE_KEY instead"
        raise StateError(f"the key {path} cannot be used: {exc.strerror}; {hint}") from None


def _create(path: Path) -> None:
    """Create the key file atomically; if two processes do, both use the first one's."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".key-")
    try:
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise StateError(f"the key {path} is open to others: chmod 600 it, or make a new one")
        key = os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
    if len(key) != KEY_BYTES:
        raise StateError(f"the key {path} is damaged: it has {len(key)} bytes, not {KEY_BYTES}")
    return key

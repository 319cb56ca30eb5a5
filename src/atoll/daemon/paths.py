"""Where the daemon lives: its socket, its lock, its log; and who may be the one daemon there."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MAX_SOCKET_PATH = 107
BACKLOG = 512


class AlreadyRunningError(ConfigError):
    """Another daemon holds the lock."""


class Place:
    """The files of one daemon, beside its socket."""

    def __init__(self, path: Path) -> None:
        if sys.platform != "linux":
            raise ConfigError("the daemon needs Linux: on Windows there is no named pipe yet")
        if not path.is_absolute():
            raise ConfigError(f"the socket's path must be absolute, not {str(path)!r}")
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise ConfigError(
                f"the socket's path has {len(os.fsencode(path))} bytes and at most "
                f"{MAX_SOCKET_PATH} are possible: choose a shorter one with --socket"
            )
        self.socket = path
        self.lock = path.with_name(path.name + ".lock")
        self.log = path.with_name(path.name + ".log")
        self.states = path.with_name(path.name + ".states")

    def prepare(self) -> None:
        """Make the folder, for its user alone; refuse one that others may write to."""
        folder = self.socket.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
        others_write = facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX
        if facts.st_uid not in (os.geteuid(), 0) or others_write:
            raise ConfigError(f"others may write to {folder}: choose another folder with --socket")

    def claim(self) -> int:
        """The lock, held for as long as the descriptor is open; AlreadyRunningError."""
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise AlreadyRunningError(f"a daemon runs already at {self.socket}") from None
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        return fd

    def claimed(self) -> bool:
        """Whether a daemon lives here."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def listen(self) -> socket.socket:
        """The socket, its user's alone from its first moment. Whoever calls holds the lock."""
        self.socket.unlink(missing_ok=True)  # a dead daemon's: a live one would hold the lock
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(sock.fileno(), 0o600)  # bind makes the file with this mode
            sock.bind(str(self.socket))
            sock.listen(BACKLOG)
        except OSError as exc:
            sock.close()
            raise ConfigError(f"cannot listen at {self.socket}: {exc.strerror}") from None
        return sock

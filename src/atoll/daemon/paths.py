"""The daemon's files: its socket, lock, log and state store; who owns them and who may start there.

The lock file proves ownership. It starts with MARK, and its second line names the device and inode
of the socket that the daemon bound. A socket with another inode, or a log beside a lock file that
does not start with MARK, belongs to someone else and is never replaced, written or removed.
"""

from __future__ import annotations

import contextlib
import errno
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
MARK = b"atoll daemon "
_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket of another program",
    stat.S_IFIFO: "a named pipe",
}


class AlreadyRunningError(ConfigError):
    """Another daemon holds the lock."""


class DaemonPaths:
    """The files of one daemon, beside its socket."""

    def __init__(self, path: Path) -> None:
        if sys.platform != "linux":
            raise ConfigError("the daemon needs Linux: its sandboxes are made of namespaces")
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
        self._bound: tuple[int, int] | None = None
        self._lock_fd: int | None = None

    def prepare(self) -> None:
        """Create the folder, private to this user; refuse one that others may write to."""
        folder = self.socket.parent
        try:
            folder.mkdir(mode=0o700, exist_ok=True)  # a home that is not there is not made
            facts = folder.stat()
            usable = os.access(folder, os.W_OK | os.X_OK)
            if not usable and not os.path.lexists(self.socket):  # else `check` says what that is
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as exc:
            raise ConfigError(
                f"cannot use the folder {folder}: {exc.strerror}. "
                "Choose another place with --socket"
            ) from None
        others_write = facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX
        if facts.st_uid not in (os.geteuid(), 0) or others_write:
            raise ConfigError(f"others may write to {folder}: choose another folder with --socket")

    def check(self) -> None:
        """Raise ConfigError if a file that a new daemon would write to is not its own."""
        try:
            self._check()
        except ConfigError:
            if not self.claimed():  # else another daemon is starting and has not recorded all
                raise

    def _check(self) -> None:
        lock = _first_bytes(self.lock)
        if lock is not None and not _is_ours(lock):
            raise _foreign(self.lock, "not a lock file of a daemon")
        for path in (self.log, self.states):
            if not lock and _status(path) is not None:
                raise _foreign(path, "not written by a daemon here")
        status = _status(self.socket)
        if status is not None and not self._is_stale(status):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
            raise _foreign(self.socket, f"{kind}, not the socket of a daemon")

    def claim(self) -> int:
        """Take the lock, which is held while the descriptor is open; AlreadyRunningError."""
        self.check()  # before the lock file is created
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(self.lock, flags, 0o600)
        except OSError as exc:
            raise ConfigError(f"cannot open the lock file {self.lock}: {exc.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check()
        except BlockingIOError:
            os.close(fd)
            raise AlreadyRunningError(f"a daemon runs already at {self.socket}") from None
        except ConfigError:
            os.close(fd)
            raise
        self._lock_fd = fd
        self._bound = self._recorded()  # a dead daemon's socket is ours to replace
        self._record()
        return fd

    def claimed(self) -> bool:
        """Return whether a daemon holds the lock."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
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
        """Bind and return the socket, private to this user. The caller holds the lock."""
        self.remove_socket()  # a dead daemon's: a live one would hold the lock
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(sock.fileno(), 0o600)  # bind makes the file with this mode
            sock.bind(str(self.socket))
            self._bound = _identity(os.lstat(self.socket))
            self._record()
            sock.listen(BACKLOG)
        except OSError as exc:
            sock.close()
            raise ConfigError(f"cannot listen at {self.socket}: {exc.strerror}") from None
        return sock

    def remove_socket(self) -> None:
        """Remove the socket that this daemon bound, or replaces; leave everything else alone."""
        status = _status(self.socket)
        if status is not None and self._bound == _identity(status):
            with contextlib.suppress(FileNotFoundError):
                self.socket.unlink()

    def _is_stale(self, status: os.stat_result) -> bool:
        """Return whether a file is the socket that a dead daemon of ours left behind."""
        return stat.S_ISSOCK(status.st_mode) and self._recorded() == _identity(status)

    def _recorded(self) -> tuple[int, int] | None:
        """Return device and inode of the socket that the last daemon here bound."""
        lines = (_first_bytes(self.lock) or b"").splitlines()
        try:
            device, inode = map(int, lines[1].split())
        except (IndexError, ValueError):
            return None
        return device, inode

    def _record(self) -> None:
        if self._lock_fd is not None:
            bound = b"%d %d\n" % self._bound if self._bound else b""
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, MARK + b"%d\n" % os.getpid() + bound, 0)


def _is_ours(lock: bytes) -> bool:
    """Return whether a lock file is empty, of this format, or of the older one: a bare pid."""
    return not lock or lock.startswith(MARK) or lock.strip().isdigit()


def _first_bytes(path: Path) -> bytes | None:
    """Return the start of a regular file; None if it does not exist, other text if not regular."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        return b"?"
    try:
        return os.read(fd, 200) if stat.S_ISREG(os.fstat(fd).st_mode) else b"?"
    finally:
        os.close(fd)


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _foreign(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{path} exists and is {what}: it was left untouched. "
        "Move it away, or choose another place with --socket"
    )

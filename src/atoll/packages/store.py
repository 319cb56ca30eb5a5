"""The store of environments: ATOLL_CACHE/environments, one read-only folder for each hash.

HASH/site, HASH/wheels      what guests see: files to import, or wheels (pyodide)
HASH/environment.json       its description; a folder without it is not an environment
HASH.lock                   flock: shared while in use, exclusive to remove; its mtime: last use
requests/KEY.json           the versions that requirements were resolved to
requests/KEY.lock           flock: one process builds, others wait for it
names/NAME.json             requirements that have a name
building/                   unfinished builds and removals; each locked by its process
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.concurrency import forks
from atoll.config import cache_folder
from atoll.errors import PackageError
from atoll.jail.walls.remove import remove_tree
from atoll.packages.build import Package
from atoll.packages.download import disk_full

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.guest.shared.messages import Json

FACTS = "environment.json"
_HASH = re.compile(r"[0-9a-f]{32}\Z")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_PARSED = 256
_counting = forks.new_lock()
_locks: weakref.WeakValueDictionary[Path, Lock] = weakref.WeakValueDictionary()
_parsed: dict[Path, tuple[tuple[int, int, int], Json]] = {}
"""Parsed objects by file, with the file's version."""
_checked: set[Path] = set()
"""Roots that were created, or checked to be this user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Packages in a folder that guests share."""

    hash: str
    folder: Path
    target: str
    """The key of its target Python."""
    label: str
    requirements: tuple[str, ...]
    packages: tuple[Package, ...]
    size: int
    created: float

    @property
    def site(self) -> str:
        """The folder to import from."""
        return str(self.folder / "site")

    @property
    def wheels(self) -> tuple[Path, ...]:
        """The wheels, if guests unpack them themselves."""
        return tuple(sorted((self.folder / "wheels").glob("*.whl")))

    @property
    def used(self) -> float:
        """When it was last used, as time.time() counts."""
        try:
            return os.stat(f"{self.folder}.lock").st_mtime
        except FileNotFoundError:
            return self.created

    def modules(self) -> tuple[str, ...]:
        """Return the modules of the packages that were requested by name."""
        asked = {re.split(r"[^a-z0-9-]", one)[0] for one in self.requirements}
        found = [
            one for package in self.packages if package.name in asked for one in package.modules
        ]
        return tuple(name for name in found if not name.startswith("_"))


class Lock:
    """The lock on an environment that all holds of this process share; the last one closes it."""

    def __init__(self, fd: int) -> None:
        self.fd, self._holds = fd, 0

    def add(self) -> bool:
        """Count one more hold; False if the last one was already closed."""
        with _counting:
            if self.fd < 0:
                return False
            self._holds += 1
            return True

    def drop(self) -> None:
        """Count one less."""
        with _counting:
            self._holds -= 1
            if self._holds == 0:
                os.close(self.fd)
                self.fd = -1


class Hold:
    """An environment in use: it is not removed before `close`, or the end of this process."""

    def __init__(self, environment: Environment, lock: Lock) -> None:
        """`lock` has already counted this hold."""
        self.environment, self.lock = environment, lock
        self._open = True

    def again(self) -> Hold:
        """Return one more hold on the same environment."""
        assert self._open
        self.lock.add()
        return Hold(self.environment, self.lock)

    def close(self) -> None:
        """Release the environment."""
        if self._open:
            self._open = False
            self.lock.drop()


def root() -> Path:
    """Return the folder of all environments; PackageError if it is another user's."""
    folder = cache_folder() / "environments"
    if folder in _checked and folder.is_dir():
        return folder
    try:
        for one in (folder, *(folder / name for name in ("requests", "names", "building"))):
            if not one.is_dir():
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as exc:
        reason = f"{folder} cannot be used: {exc.strerror}"
        raise PackageError("", reason, "Set ATOLL_CACHE to a folder of yours.") from None
    if owner != os.geteuid():
        reason = f"{folder} belongs to another user"
        raise PackageError("", reason, "Set ATOLL_CACHE to a folder of yours.")
    _checked.add(folder)
    return folder


def hold(identity: str, within: Path | None = None) -> Hold | None:
    """Return a hold on the environment of this hash; None if there is none."""
    if not _HASH.match(identity):
        return None
    folder = (within or root()) / identity
    if not os.path.exists(folder / FACTS):
        return None
    lock = _locks.get(folder)
    if lock is None or not lock.add():
        fd = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # it is being removed; an event loop must not wait for that
            os.close(fd)
            return None
        lock = _locks[folder] = Lock(fd)
        lock.add()
    found = _read(folder)
    if found is None:
        lock.drop()
        return None
    os.utime(lock.fd)
    return Hold(found, lock)


def read(identity: str) -> Environment | None:
    """Return the environment of a hash; None if it does not exist or is incomplete."""
    return _read(root() / identity)


def _read(folder: Path) -> Environment | None:
    facts = read_json(folder / FACTS)
    if facts is None:
        return None
    facts = {**facts, "folder": folder}
    try:
        facts["packages"] = tuple(map(Package.of, facts["packages"]))
        return Environment(**{**facts, "requirements": tuple(facts["requirements"])})
    except (KeyError, TypeError, AttributeError):
        return None  # written by another version of Atoll


def keep(scratch: Path, facts: Json) -> None:
    """Move a finished build into the store, atomically."""
    write_json(scratch / FACTS, facts)
    scratch.chmod(0o755)  # a folder must be writable to be moved
    target = root() / facts["hash"]
    try:
        scratch.rename(target)
    except OSError as exc:
        if exc.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    else:
        target.chmod(0o555)


def everything() -> list[Environment]:
    """Return all environments, last used first."""
    names = [name for name in os.listdir(root()) if _HASH.match(name)]
    found = [one for name in names if (one := read(name)) is not None]
    return sorted(found, key=lambda one: one.used, reverse=True)


def remove(identity: str) -> bool:
    """Remove an environment; False if it is in use. PackageError if it cannot be removed."""
    folder = root() / identity
    gone = root() / "building" / f"removed-{identity}-{os.getpid()}-{os.urandom(4).hex()}"
    with _opened(f"{folder}.lock") as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            folder.chmod(0o755)
            folder.rename(gone)
        except FileNotFoundError:
            return True
    with contextlib.suppress(FileNotFoundError):  # another process may sweep it away
        remove_tree(str(gone))
    return True


def evict(limit: int, spare: str) -> list[str]:
    """Remove the least recently used environments over `limit` bytes, except those in use."""
    kept, gone = everything(), []
    total = sum(one.size for one in kept)
    for one in reversed(kept):
        if total <= limit:
            break
        if one.hash != spare and remove(one.hash):
            total -= one.size
            gone.append(one.hash)
    return gone


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for one build, removed at its end; first remove those of dead processes."""
    building = root() / "building"
    _sweep(building)
    folder = Path(tempfile.mkdtemp(prefix="new-", dir=building))
    with _opened(f"{folder}.lock") as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            if folder.exists():
                folder.chmod(0o700)
                remove_tree(str(folder))
            os.unlink(f"{folder}.lock")


def _sweep(building: Path) -> None:
    """Remove the folders of dead processes, whose locks are free."""
    for lock in building.glob("*.lock"):
        with contextlib.suppress(OSError), _opened(str(lock)) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = lock.with_suffix("")
            if left.is_dir():
                left.chmod(0o700)
                remove_tree(str(left))
            lock.unlink()
    for left in building.glob("removed-*"):
        with contextlib.suppress(OSError):
            remove_tree(str(left))


@contextlib.contextmanager
def building_alone(key: str) -> Iterator[None]:
    """Hold the lock of one request while the block runs."""
    with _opened(str(root() / "requests" / f"{key}.lock")) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raise PackageError for a disk that is full or cannot be written."""
    try:
        yield
    except OSError as exc:
        where = str(root())
        if exc.errno in _FULL:
            raise disk_full(where) from None
        hint = "Set ATOLL_CACHE to a folder of yours."
        raise PackageError("", f"{where}: {exc.strerror or exc}", hint) from None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def version_of(path: Path | str) -> tuple[int, int, int]:
    """Return size, times and inode of a file, which change with its content; OSError if missing."""
    facts = os.stat(path)
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def read_json(path: Path) -> Json | None:
    """Return the object in a file; None if it is missing or invalid. Do not change the object.

    It is cached while the file does not change, to keep warm starts fast.
    """
    try:
        identity = version_of(path)
        known = _parsed.get(path)
        if known is not None and known[0] == identity:
            return known[1]
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    if len(_parsed) >= _MOST_PARSED:
        _parsed.clear()
    _parsed[path] = identity, found
    return found


def write_json(path: Path, facts: Json) -> None:
    """Write an object atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

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
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.cache import locks
from atoll.cache.json_files import read_json, write_json
from atoll.cache.scratch import refusal, scratch_folder, set_aside
from atoll.cache.scratch import remove as remove_aside
from atoll.config import cache_folder
from atoll.errors import PackageError
from atoll.packages.build import Package
from atoll.packages.download import disk_full

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from atoll.cache.locks import Lock
    from atoll.guest.shared.messages import Json

FACTS = "environment.json"
_HASH = re.compile(r"[0-9a-f]{32}\Z")
_FULL = (errno.ENOSPC, errno.EDQUOT)


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
        asked = {re.split(r"[^a-z0-9-]", requirement)[0] for requirement in self.requirements}
        result = [
            module
            for package in self.packages
            if package.name in asked
            for module in package.modules
        ]
        return tuple(name for name in result if not name.startswith("_"))


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
    if reason := refusal(folder, ("requests", "names", "building")):
        raise PackageError("", reason, "Set ATOLL_CACHE to a folder of yours.")
    return folder


def hold(identity: str, within: Path | None = None) -> Hold | None:
    """Return a hold on the environment of this hash; None if it is missing."""
    if not _HASH.match(identity):
        return None
    folder = (within or root()) / identity
    if not os.path.exists(folder / FACTS):
        return None
    lock = locks.share(f"{folder}.lock")
    if lock is None:
        return None
    result = _read(folder)
    if result is None:
        lock.drop()
        return None
    os.utime(lock.fd)
    return Hold(result, lock)


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
    result = [environment for name in names if (environment := read(name)) is not None]
    return sorted(result, key=lambda environment: environment.used, reverse=True)


def remove(identity: str) -> bool:
    """Remove an environment; False if it is in use. PackageError if it cannot be removed."""
    folder = root() / identity
    with locks.alone_or_not(f"{folder}.lock") as free:
        if not free:
            return False
        try:
            gone = set_aside(folder, root() / "building")
        except FileNotFoundError:
            return True
    remove_aside(gone)
    return True


def evict(limit: int, spare: str) -> list[str]:
    """Remove the least recently used environments over `limit` bytes, except those in use."""
    kept, gone = everything(), []
    total = sum(environment.size for environment in kept)
    for environment in reversed(kept):
        if total <= limit:
            break
        if environment.hash != spare and remove(environment.hash):
            total -= environment.size
            gone.append(environment.hash)
    return gone


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for one build, removed at its end; first remove those of dead processes."""
    with scratch_folder(root() / "building") as folder:
        yield folder


@contextlib.contextmanager
def building_alone(key: str) -> Iterator[None]:
    """Hold the lock of one request while the block runs."""
    with locks.alone(str(root() / "requests" / f"{key}.lock")):
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

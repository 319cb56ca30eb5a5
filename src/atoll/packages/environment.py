"""Environments by their requirements: found in the store, or resolved, built and stored."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING

from atoll.cache.json_files import read_json, version_of, write_json
from atoll.config import environments_limit
from atoll.errors import ConfigError, PackageError
from atoll.packages import build, download, source, store
from atoll.packages.build import Package
from atoll.packages.progress import Progress
from atoll.text.requirements import check_environment_name, environment_name, normalise

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atoll.guest.shared.messages import Json
    from atoll.packages.store import Hold
    from atoll.packages.target import Target

_CACHE_VARIABLES = ("ATOLL_CACHE", "XDG_CACHE_HOME", "HOME")
_MAX_IN_USE = 64
_in_use: dict[tuple[str | None, ...], Found] = {}
FORMAT = 1
"""Version of the stored format; another number makes environments be built again."""


def find(requirements: Sequence[str], target: Target) -> Hold | None:
    """Return a hold on the environment if it was built before; uses no network."""
    asked = (*requirements, target.key, *map(os.environ.get, _CACHE_VARIABLES))
    if (known := _in_use.get(asked)) is not None and (result := known.again()) is not None:
        return result
    root, key = store.root(), _key(expand(requirements), target.key)
    record = _record(root, key)
    result = store.hold(str(record["environment"]), root) if record else None
    if result is not None and not any(map(environment_name, requirements)):
        if len(_in_use) >= _MAX_IN_USE:
            _in_use.clear()
        _in_use[asked] = Found(str(root / "requests" / f"{key}.json"), result)
    return result


class Found:
    """A found environment that may still be in use, which makes a warm start faster."""

    def __init__(self, record: str, hold: Hold) -> None:
        self._record, self._version = record, version_of(record)
        self._environment, self._lock = hold.environment, hold.lock

    def again(self) -> Hold | None:
        """Return another hold; None if it was removed or resolved again."""
        try:
            if version_of(self._record) != self._version or not self._lock.add():
                return None
        except OSError:
            return None
        os.utime(self._lock.fd)
        return store.Hold(self._environment, self._lock)


def ensure(
    requirements: Sequence[str],
    target: Target,
    *,
    allow_source: bool = False,
    refresh: bool = False,
) -> Hold:
    """Return a hold on the environment of the requirements; build it if needed.

    `refresh` resolves them again. PackageError says which package is not available, and why.
    """
    asked = expand(requirements)
    if not refresh and (result := find(asked, target)) is not None:
        return result
    key = _key(asked, target.key)
    with Progress(f"atoll: packages {', '.join(asked)[:60]}") as progress, store.disk_errors():
        progress.say("waiting for another process that builds them")
        with store.building_alone(key):
            if not refresh and (result := find(asked, target)) is not None:
                return result
            record = None if refresh else _record(store.root(), key)
            identity = _build(asked, target, record, progress, allow_source=allow_source)
            result = store.hold(identity)
    if result is None:
        raise PackageError("", "the environment was removed while it was built", "Try again.")
    store.evict(environments_limit(), spare=identity)
    return result


def expand(requirements: Sequence[str]) -> tuple[str, ...]:
    """Return requirements normalised, with `@NAME` replaced by that environment's."""
    result: list[str] = []
    asked = normalise(requirements)
    for requirement in asked:
        name = environment_name(requirement)
        result += [requirement] if name is None else named(name)
    return asked if tuple(result) == asked else normalise(result)


def named(name: str) -> tuple[str, ...]:
    """Return the requirements of a named environment; ConfigError if it is missing."""
    facts = read_json(store.root() / "names" / f"{check_environment_name(name)}.json")
    if facts is None:
        known = ", ".join(sorted(names())) or "none"
        raise ConfigError(
            f"no environment is named {name!r}: there are {known}. "
            f"Type: atoll env create {name} --package PACKAGE"
        )
    return tuple(facts["requirements"])


def names() -> dict[str, tuple[str, ...]]:
    """Return the requirements of all named environments."""
    result = {path.stem: read_json(path) for path in (store.root() / "names").glob("*.json")}
    return {name: tuple(facts["requirements"]) for name, facts in result.items() if facts}


def set_name(name: str, requirements: Sequence[str]) -> None:
    """Give requirements a name."""
    facts = {"requirements": list(expand(requirements))}
    with store.disk_errors():
        write_json(store.root() / "names" / f"{check_environment_name(name)}.json", facts)


def forget_name(name: str) -> None:
    """Delete a name; its environments stay."""
    (store.root() / "names" / f"{check_environment_name(name)}.json").unlink(missing_ok=True)


def forget(identity: str) -> bool:
    """Remove an environment and the requests that resolve to it; False if it is in use."""
    if not store.remove(identity):
        return False
    for path in (store.root() / "requests").glob("*.json"):
        record = read_json(path)
        if record and record.get("environment") == identity:
            path.unlink(missing_ok=True)
    return True


def _build(
    asked: tuple[str, ...],
    target: Target,
    record: Json | None,
    progress: Progress,
    *,
    allow_source: bool,
) -> str:
    with store.scratch() as scratch:
        packages = _fetch(asked, target, record, scratch, progress, allow_source=allow_source)
        identity = _identity(packages, target)
        if store.read(identity) is None:
            progress.say(f"unpacking {len(packages)} packages")
            _make(scratch, identity, asked, packages, target)
    facts = {
        "requirements": list(asked),
        "target": target.key,
        "environment": identity,
        "packages": [package.facts() for package in packages],
    }
    write_json(store.root() / "requests" / f"{_key(asked, target.key)}.json", facts)
    return identity


def _fetch(
    asked: tuple[str, ...],
    target: Target,
    record: Json | None,
    scratch: Path,
    progress: Progress,
    *,
    allow_source: bool,
) -> list[Package]:
    """Download the wheels into `scratch`; the same versions if they were resolved before."""
    progress.say("resolving")
    before = [Package.of(package) for package in record["packages"]] if record else []
    if before and not any(package.from_source for package in before):
        result = download.pinned([package.pin for package in before], target, scratch, progress)
        return build.describe(result)
    if not allow_source:
        return build.describe(download.wheels(asked, target, scratch, progress, links=""))
    return source.wheels(asked, target, scratch, progress)


def _make(
    scratch: Path, identity: str, asked: tuple[str, ...], packages: list[Package], target: Target
) -> None:
    """Unpack, check and store an environment."""
    fresh = scratch / "environment"
    fresh.mkdir()
    modules: dict[str, tuple[str, ...]] = {}
    if target.unpacked:
        (fresh / "site").mkdir()
        modules = build.unpack(scratch / "wheels", fresh / "site", target)
        if target.finish is not None:
            target.finish(fresh / "site")
    else:
        (scratch / "wheels").rename(fresh / "wheels")
    facts = [
        {**package.facts(), "modules": list(modules.get(package.file, ()))} for package in packages
    ]
    size = build.close(fresh)
    if size > (most := environments_limit()):  # or all others would be evicted for it
        reason = f"together they take {size:,} bytes, more than all environments may ({most:,})"
        raise PackageError("", reason, "Set ATOLL_ENVIRONMENTS_MB to more.")
    fresh.chmod(0o755)
    store.keep(
        fresh,
        {
            "hash": identity,
            "target": target.key,
            "label": target.label,
            "requirements": list(asked),
            "packages": facts,
            "size": size,
            "created": time.time(),
        },
    )


def _identity(packages: list[Package], target: Target) -> str:
    files = [[package.file, package.sha256] for package in packages]
    return _digest([FORMAT, target.key, target.unpacked, files])


@functools.lru_cache(maxsize=256)
def _key(asked: tuple[str, ...], target: str) -> str:
    return _digest([FORMAT, target, list(asked)])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _record(root: Path, key: str) -> Json | None:
    record = read_json(root / "requests" / f"{key}.json")
    return record if record and {"environment", "packages"} <= record.keys() else None

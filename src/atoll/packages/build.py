"""Turns a folder of wheels into a folder to import from: unpacks in a jail, then checks it."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from atoll.config import environments_limit
from atoll.errors import PackageError
from atoll.jail.supervisor.spec import PACKAGES
from atoll.packages import jailed, written
from atoll.packages import unpack as unpack_program
from atoll.packages.download import disk_full
from atoll.text.requirements import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atoll.guest.shared.messages import Json
    from atoll.packages.target import Target

MAX_BYTES = 16 << 30
BUILD_SECONDS = 1800
WHEEL = re.compile(r"([A-Za-z0-9._]+)-([A-Za-z0-9._+!]+)(?:-\d\w*)?-[^-]+-[^-]+-[^-]+\.whl\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One resolved package of an environment."""

    name: str
    version: str
    file: str
    sha256: str
    from_source: bool = False
    """Whether the wheel was built from source here; then no index has it."""
    modules: tuple[str, ...] = ()

    @property
    def pin(self) -> str:
        """The line of a requirements file that names exactly this wheel."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"

    def facts(self) -> Json:
        """Return the fields as JSON data."""
        return {**asdict(self), "modules": list(self.modules)}

    @classmethod
    def of(cls, facts: Json) -> Package:
        """Return the package of these fields."""
        return cls(**{**facts, "modules": tuple(facts["modules"])})


def describe(wheels: Sequence[Path], built_here: frozenset[str] = frozenset()) -> list[Package]:
    """Return the packages of the wheels by their file names; PackageError for other files."""
    result = []
    for path in wheels:
        match = WHEEL.match(path.name)
        if match is None:
            raise PackageError("", f"{path.name[:200]!r} is not the name of a wheel")
        digest = written.digest(path.parent, path.name)
        made = digest in built_here
        name, version = canonical(match[1]), match[2]
        package = Package(
            name=name, version=version, file=path.name, sha256=digest, from_source=made
        )
        result.append(package)
    return sorted(result, key=lambda package: package.name)


def unpack(wheels: Path, folder: Path, target: Target) -> dict[str, tuple[str, ...]]:
    """Fill `folder` from the wheels; return the modules of each wheel."""
    most = min(MAX_BYTES, environments_limit())
    said = jailed.run(
        target.interpreter,
        ("unpack.py", "wheels", str(most), PACKAGES, "1" if target.compiled else "0"),
        seen={"unpack.py": str(unpack_program.__file__), "wheels": str(wheels)},
        folder=folder,
        seconds=BUILD_SECONDS,
    )
    try:
        report = json.loads(said.stdout)
    except ValueError:
        words = said.stderr.strip()[-300:] or "it was ended"
        raise PackageError("", f"the wheels could not be unpacked: {words}") from None
    if "error" in report:
        if report["errno"] in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(str(folder))
        match = WHEEL.match(str(report["wheel"]))
        name = canonical(match[1]) if match else ""
        hint = "" if most == MAX_BYTES else f"ATOLL_ENVIRONMENTS_MB allows {most:,} in all."
        raise PackageError(name, f"its wheel is refused: {report['error']}", hint)
    result = report["packages"]
    return {wheel: tuple(map(str, facts["modules"])) for wheel, facts in result.items()}


def close(folder: Path) -> int:
    """Make a folder read-only and return its size; PackageError if it contains special files.

    SECURITY: a jailed process wrote it. No link is followed, and every mode is set.
    """
    size = 0
    for root, folders, files, place in os.fwalk(folder):
        for name in (*folders, *files):
            size += _close_file(place, name, root)
    folder.chmod(0o555)
    return size


def _close_file(folder: int, name: str, root: str) -> int:
    """Make a file or folder read-only by its descriptor, so that it is the one that was checked."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        facts = os.fstat(fd)
        if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
            path = os.path.join(root, name)
            raise PackageError("", f"the build left {path!r}, which is not a file")
        is_program = stat.S_ISDIR(facts.st_mode) or facts.st_mode & 0o100
        os.chmod(f"/proc/self/fd/{fd}", 0o555 if is_program else 0o444)
        return facts.st_blocks * 512
    finally:
        os.close(fd)

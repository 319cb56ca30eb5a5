"""Packages that are published as source only: downloaded as a file and built in a jail, if allowed.

SECURITY: a build runs the package's code. It runs in a jail without a network, in its own folder;
its requirements are downloaded before, as wheels. The process with a network runs none of its code.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from atoll.errors import ConfigError, PackageError
from atoll.launch import interpreter
from atoll.packages import build, download, fetch_source, jailed, read_source, written
from atoll.packages.target import find_pip
from atoll.text.requirements import canonical, normalise

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atoll.guest.shared.messages import Json
    from atoll.packages.build import Package
    from atoll.packages.progress import Progress
    from atoll.packages.target import Target

MAX_SOURCES = 20
MAX_WHEEL = 4 << 30
READ_SECONDS = 60
OLD_STYLE = frozenset({"setuptools", "wheel"})
"""Build requirements of a source that declares none: setup.py only, or an old setuptools."""


def wheels(
    asked: Sequence[str], target: Target, scratch: Path, progress: Progress
) -> list[Package]:
    """Return the wheels of all requirements; build those that no index has."""
    built = scratch / "built"
    built.mkdir()
    made: dict[str, str] = {}
    while True:
        try:
            links = str(built) if made else ""
            result = download.wheels(asked, target, scratch, progress, links=links)
        except PackageError as exc:
            if not exc.no_wheel_of or exc.package in made or len(made) == MAX_SOURCES:
                raise
            made[exc.package] = _build(exc.no_wheel_of, exc.package, target, scratch, progress)
        else:
            return build.describe(result, frozenset(made.values()))


def _build(
    requirement: str, package: str, target: Target, scratch: Path, progress: Progress
) -> str:
    """Build a wheel of the package in `scratch`/built; return its sha256."""
    work = scratch / f"source-{package}"
    work.mkdir()
    progress.say(f"fetching the source of {package}")
    archive = _fetch(requirement, package, target, work, progress)
    needs = work / "needs"
    needs.mkdir()
    wanted = _needed(archive, package, work / "read")
    progress.say(f"building {package} from source")
    if wanted:
        download.wheels(wanted, target, needs, progress, links="")
    (needs / "wheels").mkdir(exist_ok=True)
    out = work / "out"
    out.mkdir()
    name = _run_build(archive, package, needs / "wheels", target, out)
    return written.copy(out, name, scratch / "built" / name, MAX_WHEEL)


def _fetch(requirement: str, package: str, target: Target, work: Path, progress: Progress) -> Path:
    """Download the source as a file; no code of the package runs."""
    if target.flags:
        reason = f"building from source is not possible for {target.label}"
        raise PackageError(package, reason, "Use the backend native or daemon.")
    command = [*find_pip(target.interpreter)[:2], str(fetch_source.__file__), str(work)]
    said = download.confined([*command, package, requirement], target, work, progress)
    result = [name for name in os.listdir(work) if name.endswith((".tar.gz", ".zip", ".tgz"))]
    if len(result) != 1 or said.code != 0:
        if "no source" in said.text:
            reason = f"the index has neither a wheel for {target.label} nor a source"
            raise PackageError(package, reason, "Check the spelling and the version.")
        raise download.explain(said.text, target, offline=said.offline)
    archives = work.with_name(f"archive-{package}")  # where the downloader cannot write
    archives.mkdir()
    written.copy(work, result[0], archives / result[0], fetch_source.MAX_BYTES)
    return archives / result[0]


def _needed(archive: Path, package: str, folder: Path) -> tuple[str, ...]:
    """Return the build requirements that the source declares; read in a jail, validated here."""
    folder.mkdir()
    said = jailed.run(
        interpreter.resolve(None),
        ("read.py", "archive"),
        seen={"read.py": str(read_source.__file__), "archive": str(archive)},
        folder=folder,
        seconds=READ_SECONDS,
    )
    try:
        facts: Json = json.loads(said.stdout)
        needed = {*facts.get("requires", ())}
        old = "requires" not in facts or any(
            requirement.startswith("setuptools") for requirement in needed
        )
        return normalise(needed | OLD_STYLE if old else needed)
    except (ValueError, KeyError, TypeError, ConfigError) as exc:
        reason = f"its source does not say in plain words what its build needs: {exc}"
        raise PackageError(package, reason[:500]) from None


def _run_build(archive: Path, package: str, needs: Path, target: Target, out: Path) -> str:
    """Build a wheel in the folder `out`; return its name."""
    _, *pip = find_pip(target.interpreter)
    pip = [word for word in pip if word != "-I"]
    options = "--no-index --no-deps --no-cache-dir --disable-pip-version-check --no-color"
    said = jailed.run(
        target.interpreter,
        (
            *pip,
            "wheel",
            *options.split(),
            "--find-links",
            "needs",
            "--wheel-dir",
            ".",
            archive.name,
        ),
        seen={"needs": str(needs), archive.name: str(archive)},
        folder=out,
        seconds=build.BUILD_SECONDS,
    )
    match = [name for name in os.listdir(out) if build.WHEEL.match(name)]
    if len(match) != 1:
        raise PackageError(package, f"its source does not build: {_why(said)}")
    if canonical(match[0].partition("-")[0]) != package:
        raise PackageError(package, f"its source builds {match[0]!r:.100} instead")
    return match[0]


def _why(said: jailed.CompletedRun) -> str:
    lines = [line.strip() for line in (said.stderr + said.stdout).splitlines() if line.strip()]
    telling = [
        line for line in lines if re.match(r"[\w.]*(?:Error|Exception)\b|ERROR|error:", line)
    ]
    raised = [line for line in telling if re.match(r"[\w.]+(?:Error|Exception): ", line)]
    telling = raised[-1:] or telling
    return " / ".join((telling or lines)[-4:])[-download.MAX_TEXT :]

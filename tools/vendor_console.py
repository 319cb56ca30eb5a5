"""Fetch the console's editor and terminal from npm: by exact version, checked by hash.

The packages are ES modules. Their imports of each other become relative ones, so a browser loads
them as they are and no bundler is needed. Nothing is run: npm only downloads. Without npm, or
without network, the console has a plain text area and no terminal, and this says so.

A package may have `styles`, and `replace`: texts that the console's content security policy would
refuse, with what takes their place.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "tools/console_packages.json"
TARGET = ROOT / "src/atoll/service/console/static/vendor"
SECONDS = 120
_IMPORT = re.compile(r"""^((?:import|export)\b[^'"]*?\bfrom\s*)(['"])([^'"]+)\2""", re.MULTILINE)

Facts = dict[str, Any]
Packages = dict[str, Facts]


class VendorError(Exception):
    """A package cannot be fetched, or is not the one that is meant."""


def vendor(target: Path = TARGET) -> str:
    """Write the modules and their licences; return what was done, in words."""
    packages: Packages = json.loads(PACKAGES.read_text("utf-8"))
    stamp = hashlib.sha256(PACKAGES.read_bytes()).hexdigest()
    if (target / "stamp.txt").is_file() and (target / "stamp.txt").read_text("utf-8") == stamp:
        return "the console's editor and terminal are there already"
    tarballs = {name: _tarball(name, facts) for name, facts in _fetched(packages).items()}
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    licences = []
    for name, facts in packages.items():
        styles = facts.get("styles")
        names = (facts["module"], "LICENSE", *([styles] if styles else []))
        files = _members(tarballs[name], names)
        text = _replaced(name, _relative(files[facts["module"]].decode(), packages), facts)
        (target / file_name(name)).write_text(text, "utf-8")
        if styles:
            (target / file_name(name, "css")).write_bytes(files[styles])
        licences.append(f"{name} {facts['version']}\n\n{files['LICENSE'].decode()}")
    (target / "licences.txt").write_text("\n\n".join(licences), "utf-8")
    (target / "stamp.txt").write_text(stamp, "utf-8")
    return f"the console's editor and terminal: {len(packages)} packages in {target}"


def package_files(name: str, facts: Facts, files: tuple[str, ...]) -> dict[str, bytes]:
    """Return files of one npm package, fetched by version and checked by hash."""
    _fetched({name: facts})
    return _members(_tarball(name, facts), files)


def file_name(package: str, ending: str = "js") -> str:
    """Return the file of a package: codemirror-view.js for @codemirror/view."""
    return f"{package.lstrip('@').replace('/', '-')}.{ending}"


def cache_folder() -> Path:
    """Return where tarballs are kept, by their hash."""
    own = os.environ.get("ATOLL_CACHE")
    found = Path(own) if own else Path.home() / ".cache/atoll"
    return found / "npm"


def _fetched(packages: Packages) -> Packages:
    """Have npm download what the cache lacks; return all packages."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: one for name, one in packages.items() if not _kept(one).is_file()}
    if not missing:
        return packages
    npm = shutil.which("npm")
    if npm is None:
        raise VendorError("there is no npm on the PATH")
    wanted = [f"{name}@{one['version']}" for name, one in missing.items()]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        patience = ("--fetch-retries=1", "--fetch-timeout=20000")
        command = [npm, "pack", "--json", "--ignore-scripts", *patience]
        command += ["--pack-destination", scratch]
        try:
            done = subprocess.run(
                [*command, *wanted], cwd=scratch, timeout=SECONDS, capture_output=True, check=True
            )
            found: list[dict[str, Any]] = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as exc:
            raise VendorError(f"npm cannot fetch them: {exc}") from None
        for one in found:
            data = (Path(scratch) / Path(one["filename"]).name).read_bytes()
            _check(one["name"], data, missing[one["name"]])
            draft = Path(scratch) / "draft"
            draft.write_bytes(data)
            draft.replace(_kept(missing[one["name"]]))
    return packages


def _kept(facts: Facts) -> Path:
    return cache_folder() / f"{hashlib.sha256(facts['integrity'].encode()).hexdigest()[:32]}.tgz"


def _tarball(name: str, facts: Facts) -> bytes:
    """Return a tarball out of the cache, checked again."""
    try:
        data = _kept(facts).read_bytes()
    except OSError as exc:
        raise VendorError(f"npm did not give {name}: {exc}") from None
    _check(name, data, facts)
    return data


def _check(name: str, data: bytes, facts: Facts) -> None:
    kind, _, wanted = facts["integrity"].partition("-")
    found = base64.b64encode(hashlib.new(kind, data).digest()).decode()
    if found != wanted:
        raise VendorError(f"{name} {facts['version']} is not what it was: {kind} {found}")


def _members(data: bytes, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return files of a tarball; nothing is extracted to disk."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for name in names:
            file = archive.extractfile(f"package/{name}")
            if file is None:
                raise VendorError(f"{name} is no file")
            found[name] = file.read()
    return found


def _relative(source: str, packages: Packages) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[3] not in packages:
            raise VendorError(f"a module imports {match[3]!r}, which is not in {PACKAGES.name}")
        return f"{match[1]}{match[2]}./{file_name(match[3])}{match[2]}"

    return _IMPORT.sub(replace, source)


def _replaced(name: str, text: str, facts: Facts) -> str:
    for old, new in facts.get("replace", {}).items():
        if old not in text:
            raise VendorError(f"{name} {facts['version']} has no {old!r} that could be replaced")
        text = text.replace(old, new)
    return text


def main() -> int:
    """Fetch them; say why if they cannot be."""
    try:
        print(vendor())
    except VendorError as exc:
        print(
            f"the console will have a text area as its editor, and no terminal: {exc}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

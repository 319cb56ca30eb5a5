"""Unpacks wheels into the working folder: a program that runs inside a jail, on CPython 3.8+.

    python unpack.py WHEELS MAX_BYTES PLACE COMPILE

SECURITY: wheels are hostile. Files are written below the working folder only, links and devices are
refused, and no code of a package runs: its modules are only compiled. The jail holds even if this
file has a bug, and the host checks the result before it stores it.
"""

from __future__ import annotations

import compileall
import configparser
import json
import os
import re
import stat
import sys
import zipfile
from py_compile import PycInvalidationMode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 20
BLOCK = 4096
MAX_RATIO, LEAST_ALLOWED = 100, 64 << 20
"""A wheel may unpack to so many times its size, or to so many bytes; real ones to 10 times it."""
MAX_LAUNCHERS = 1000
_SCRIPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_ENTRY = re.compile(r"([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_][\w.]*)\s*(?:\[.*\])?\Z")
_LAUNCHER = (
    "#!/usr/bin/env python3\nimport sys\nfrom {0} import {1}\n"
    "if __name__ == '__main__':\n    sys.exit({2}())\n"
)
_IN_ROOT = ("purelib", "platlib", "data")


class HostileWheelError(Exception):
    """A wheel is invalid or hostile."""


def main(wheels: str, most: str, place: str, compiled: str) -> int:
    """Unpack every wheel of a folder; print one JSON object: an error, or the modules."""
    room, names = Room(int(most)), sorted(os.listdir(wheels))
    report: dict[str, Any] = {"packages": {}}
    wheel = ""
    try:
        for wheel in names:
            measure(os.path.join(wheels, wheel), room)
        for wheel in names:
            report["packages"][wheel] = unpack(os.path.join(wheels, wheel))
        if compiled == "1":
            unchecked = PycInvalidationMode.UNCHECKED_HASH
            compileall.compile_dir(".", ddir=place, quiet=2, invalidation_mode=unchecked)
    except (HostileWheelError, zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as exc:
        number = getattr(exc, "errno", None)
        report = {"wheel": wheel, "error": f"{exc}"[:500], "errno": number}
    sys.stdout.write(json.dumps(report))
    return 0


class Room:
    """The bytes that may still be written."""

    def __init__(self, most: int) -> None:
        self.most, self.left = most, most

    def take(self, size: int) -> None:
        """Count bytes; HostileWheelError if they are too many."""
        self.left -= size
        if self.left < 0:
            raise HostileWheelError(f"it unpacks to more than {self.most:,} bytes")


def measure(path: str, room: Room) -> None:
    """Count what a wheel takes on the disk, before anything is written; HostileWheelError.

    `zipfile` yields no more of a file than the size that is counted here.
    """
    packed = os.path.getsize(path)
    own = Room(max(LEAST_ALLOWED, packed * MAX_RATIO))
    folders = set()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            size = -(-info.file_size // BLOCK) * BLOCK + BLOCK  # an inode takes room too
            folder = os.path.dirname(info.filename)
            while folder and folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
                size += 2 * BLOCK
            room.take(size)
            own.take(size)


def unpack(path: str) -> dict[str, Any]:
    """Write the files of one wheel; return its top-level modules."""
    with zipfile.ZipFile(path) as archive:
        files = [member for member in archive.infolist() if not member.filename.endswith("/")]
        for member in files:
            target = place_of(member)
            if target is not None:
                _write(archive, member, target)
        names = [target for target in map(place_of, files) if target is not None]
        _write_launchers(archive, files)
    return {"modules": modules(names)}


def place_of(info: zipfile.ZipInfo) -> str | None:
    """Return the path of a file below the folder; None for one that is left out."""
    name, kind = info.filename, info.external_attr >> 16
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "" in parts or "\\" in name or "\0" in name:
        raise HostileWheelError(f"a file in it leaves the folder: {name[:200]!r}")
    if kind and stat.S_IFMT(kind) not in (0, stat.S_IFREG):
        raise HostileWheelError(f"a file in it is a link or a device: {name[:200]!r}")
    if not parts[0].endswith(".data"):
        return name
    if len(parts) > 2 and parts[1] in _IN_ROOT:
        return "/".join(parts[2:])
    if len(parts) == 3 and parts[1] == "scripts":
        return "bin/" + parts[2]
    return None


def modules(names: list[str]) -> list[str]:
    """Return the importable modules and packages among the names of files."""
    result = set()
    for name in names:
        first, slash, _ = name.partition("/")
        module = first if slash else first.partition(".")[0]
        is_code = name.endswith((".py", ".so"))
        if is_code and module.isidentifier() and (slash or first.endswith((".py", ".so"))):
            result.add(module)
    return sorted(result - {"bin"})


def _write(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: str) -> None:
    folder = os.path.dirname(target)
    if folder:
        os.makedirs(folder, exist_ok=True)
    is_program = target.startswith("bin/") or (info.external_attr >> 16) & 0o111
    with archive.open(info) as source, open(target, "wb") as file:
        first = source.read(CHUNK)
        if target.startswith("bin/") and re.match(rb"#!pythonw?(?=[\s])", first):
            first = b"#!/usr/bin/env python3" + first[first.index(b"python") + 6 :].lstrip(b"w")
        while first:
            file.write(first)
            first = source.read(CHUNK)
    os.chmod(target, 0o755 if is_program else 0o644)


def _write_launchers(archive: zipfile.ZipFile, files: list[zipfile.ZipInfo]) -> None:
    """Write the commands that entry_points.txt names, as pip does."""
    left = MAX_LAUNCHERS
    for info in files:
        if not re.match(r"[^/]+\.dist-info/entry_points\.txt\Z", info.filename):
            continue
        parser = configparser.RawConfigParser(delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        try:
            with archive.open(info) as file:
                parser.read_string(file.read(CHUNK).decode("utf-8", "replace"))
            commands = parser.items("console_scripts")
        except configparser.Error:
            continue
        for name, entry in commands:
            match = _ENTRY.match(entry.strip())
            left -= 1
            if left < 0:
                raise HostileWheelError(f"it has more than {MAX_LAUNCHERS:,} commands")
            if match and _SCRIPT.match(name):
                _write_launcher(name, match[1], match[2])


def _write_launcher(name: str, module: str, function: str) -> None:
    text = _LAUNCHER.format(module, function.partition(".")[0], function)
    os.makedirs("bin", exist_ok=True)
    with open("bin/" + name, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod("bin/" + name, 0o755)  # noqa: S103 - a program


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Makes the files of an image out of this machine's own: a Python, a shell, and what they load."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PROGRAMS = ("sh", "ls", "cat", "id", "touch", "rm", "mkdir", "env", "dd", "wc", "grep", "sleep")
_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "lib2to3", "site-packages", "config-3*")
_RELEASE = 'PRETTY_NAME="Test image"\nID=test\n'
PASSWD = "root:x:0:0:root:/root:/bin/sh\nworker:x:999:999::/srv:/bin/sh\n"


def make(folder: Path) -> Path:
    """Fill the folder with the files of a small image, and return it."""
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    programs = [
        Path(path) for name in PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))
    ]
    library = Path(sysconfig.get_path("stdlib"))
    for name in ("bin", "lib", "usr/bin", "usr/lib", "etc", "srv", "root", "tmp", "var/data"):
        (folder / name).mkdir(parents=True)
    for program in programs:
        shutil.copy(program, folder / "usr/bin" / program.name)
        (folder / "bin" / program.name).symlink_to(f"/usr/bin/{program.name}")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copy(python, folder / "usr/bin" / version)
    (folder / "usr/bin/python3").symlink_to(version)
    shutil.copytree(
        library, folder / "usr/lib" / version, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
    native = (folder / "usr/lib" / version / "lib-dynload").glob("*.so")
    for needed in _libraries([python, *programs, *native]):
        target = folder / needed.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(needed, target)
    (folder / "etc/os-release").write_text(_RELEASE)
    (folder / "etc/passwd").write_text(PASSWD)
    (folder / "root").chmod(0o700)
    (folder / "root/secret").write_text("of the image")
    return folder


def _libraries(binaries: list[Path]) -> set[Path]:
    """Return the shared libraries that binaries load, and the loader, by the names they ask for."""
    said = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, check=False
    ).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", said) if os.path.exists(path)}

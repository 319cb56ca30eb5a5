"""Prints the build requirements that a source archive declares: a program that runs in a jail.

python read_source.py ARCHIVE
"""

from __future__ import annotations

import json
import sys
import tarfile
import tomllib
import zipfile

MAX_BYTES = 1 << 20


def main(archive: str) -> int:
    """Print {"requires": [...]}; {} if the source declares none."""
    text = _project_file(archive)
    system = tomllib.loads(text).get("build-system", {}) if text else {}
    sys.stdout.write(json.dumps({name: system[name] for name in ("requires",) if name in system}))
    return 0


def _project_file(archive: str) -> str:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as source:
            names = [name for name in source.namelist() if _is_project_file(name)]
            if not names:
                return ""
            with source.open(names[0]) as file:
                return file.read(MAX_BYTES).decode()
    with tarfile.open(archive) as source:
        for member in source:
            result = source.extractfile(member) if _is_project_file(member.name) else None
            if result is not None:
                return result.read(MAX_BYTES).decode()
    return ""


def _is_project_file(name: str) -> bool:
    return name.count("/") == 1 and name.endswith("/pyproject.toml")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

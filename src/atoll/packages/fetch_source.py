"""Downloads one source archive without running its code: a program for the confined downloader.

    python fetch_source.py FOLDER PACKAGE REQUIREMENT

`pip download` would run the source's build to learn its dependencies. So this uses pip's finder
only, which knows the indexes, certificates and credentials. It runs on CPython 3.8+.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 1 << 30


def main(folder: str, package: str, requirement: str) -> int:
    """Write the newest matching source into the folder; return an exit code."""
    _have_pip()
    from pip._internal.commands import create_command  # noqa: PLC0415 - no public name
    from pip._internal.utils.temp_dir import global_tempdir_manager  # noqa: PLC0415
    from pip._vendor.packaging.requirements import Requirement  # noqa: PLC0415

    command: Any = create_command("download")
    options, _ = command.parse_args(["--no-deps", "--no-binary", package, package])
    with command.main_context(), global_tempdir_manager():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)  # noqa: SLF001
        wanted = Requirement(requirement).specifier
        best = finder.find_best_candidate(package, specifier=wanted).best_candidate
        if best is None or best.link.is_wheel:
            sys.stdout.write("no source\n")
            return 1
        _write(best.link, session, os.path.join(folder, os.path.basename(best.link.filename)))
    return 0


def _have_pip() -> None:
    """Make pip importable: the wheel that Python ships, if none is installed."""
    try:
        import pip  # noqa: F401, PLC0415
    except ImportError:
        import ensurepip  # noqa: PLC0415

        kept = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled", "pip-*.whl")
        sys.path[:0] = glob.glob(kept)


def _write(link: Any, session: Any, path: str) -> None:
    """Download a file, and verify the index's digest if it has one."""
    digest, size = hashlib.sha256(), 0
    answer = session.get(link.url_without_fragment, stream=True)
    answer.raise_for_status()
    with open(path, "wb") as file:
        for piece in answer.iter_content(1 << 20):
            size += len(piece)
            if size > MAX_BYTES:
                sys.exit(f"ERROR: the source is larger than {MAX_BYTES:,} bytes")
            digest.update(piece)
            file.write(piece)
    expected = link.hash if link.hash_name == "sha256" else None
    if expected and digest.hexdigest() != expected:
        sys.exit(f"ERROR: Expected sha256 {expected}, got {digest.hexdigest()}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

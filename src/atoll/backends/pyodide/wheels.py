"""Libraries for guests: wheels from PyPI for Pyodide (PEP 783) and pure Python ones.

pip downloads them on the host into the private folder, and every guest unpacks them.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.backends.pyodide import distribution
from atoll.launch.interpreter import resolve
from atoll.packages import download
from atoll.packages.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.packages.store import Environment

PLATFORM = "pyemscripten_2026_0_wasm32"
TAG = f"cp{distribution.PYTHON[0]}{distribution.PYTHON[1]}"


def installed() -> tuple[Path, ...]:
    """Return the wheels that every guest gets, by name."""
    return tuple(sorted(_folder().glob("*.whl")))


def target() -> Target:
    """Return the target of packages by name for Pyodide: wheels that each guest unpacks."""
    version = ".".join(map(str, distribution.PYTHON[:2]))
    flags = f"--implementation=cp --abi={TAG} --python-version={version}"
    return Target(
        key=f"pyodide-{TAG}-{PLATFORM}",
        label=f"Python {version} in Pyodide",
        interpreter=resolve(None),
        flags=(f"--platform={PLATFORM}", *flags.split()),
        unpacked=False,
    )


def with_packages(environment: Environment | None) -> tuple[Path, ...]:
    """Return the wheels that every guest gets, then those by name, which take precedence."""
    named = environment.wheels if environment is not None else ()
    names = {path.name.partition("-")[0] for path in named}
    return (*(wheel for wheel in installed() if wheel.name.partition("-")[0] not in names), *named)


def install(names: Sequence[str]) -> tuple[str, ...]:
    """Download packages and their dependencies; return the new wheels."""
    before = {path.name for path in installed()}
    with (
        distribution.locked("wheels"),
        tempfile.TemporaryDirectory(prefix="wheels-", dir=distribution.private_folder()) as scratch,
    ):
        for wheel in download.by_hand(names, target(), Path(scratch)):
            _replace(wheel)
    return tuple(path.name for path in installed() if path.name not in before)


def _folder() -> Path:
    folder = distribution.private_folder() / f"wheels-{TAG}-{PLATFORM}"
    folder.mkdir(exist_ok=True)
    distribution.readable(folder)
    return folder


def _replace(wheel: Path) -> None:
    """Store a wheel in place of another version of the same package."""
    package = wheel.name.partition("-")[0]
    for old in _folder().glob(f"{package}-*.whl"):
        if old.name != wheel.name:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()
    distribution.readable(wheel)
    wheel.replace(_folder() / wheel.name)

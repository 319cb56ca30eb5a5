"""Pyodide's own files: downloaded once, verified by their hashes, stored privately."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.backends.pyodide import deno
from atoll.config import cache_folder
from atoll.egress import certificates
from atoll.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = "314.0.7"
PYTHON = (3, 14, 2)
FILES = {
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
}
"""The required files and their SHA-256 in this version."""
FETCH_SECONDS = 300
_ANOTHER_CACHE = "Set ATOLL_CACHE to a folder of yours."


@dataclass(frozen=True, slots=True)
class Distribution:
    """A folder with Pyodide's files, and a name for this build."""

    folder: Path
    key: str


def private_folder() -> Path:
    """Return the folder of this backend's files, which only this user may read or write."""
    folder = cache_folder() / "pyodide"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as exc:
        raise BackendUnavailableError(
            deno.BACKEND, f"the folder for Pyodide cannot be made: {exc}", _ANOTHER_CACHE
        ) from None
    if facts.st_uid != os.geteuid():
        raise BackendUnavailableError(
            deno.BACKEND, f"{folder} belongs to another user", _ANOTHER_CACHE
        )
    if facts.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def installed() -> Distribution | None:
    """Return the installed distribution, if `setup` was run."""
    folder = private_folder() / VERSION
    return Distribution(folder, VERSION) if folder.is_dir() else None


def setup() -> Distribution:
    """Download and store the npm package, unless it is installed."""
    with locked("setup"):
        result = installed()
        if result is None:
            tell(f"fetching Pyodide {VERSION} ...")
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=private_folder()) as scratch:
                keep(_fetch_package(Path(scratch)), VERSION, check)
            result = installed()
    assert result is not None
    return result


def keep(source: Path, name: str, check: Callable[[Path], None]) -> Path:
    """Check Pyodide's files in `source`, and store them as the folder `name`."""
    target = private_folder() / name
    fresh = Path(tempfile.mkdtemp(prefix="new-", dir=private_folder()))
    try:
        for file in FILES:
            shutil.copyfile(source / file, fresh / file)
        check(fresh)
        for path in (fresh, *(fresh / file for file in FILES)):
            readable(path)
        _rename_unless_there(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _rename_unless_there(fresh: Path, target: Path) -> None:
    """Rename a folder; another process with another lock may have created the target first."""
    try:
        fresh.rename(target)
    except OSError as exc:
        if exc.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def check(folder: Path) -> None:
    """Raise an error if the files are not byte for byte those of this version."""
    for name, digest in FILES.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise BackendUnavailableError(
                deno.BACKEND, f"{name} is not that of Pyodide {VERSION}: it was not stored"
            )


def tell(text: str) -> None:
    """Print to a terminal why it takes a while."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"atoll: {text}\n")


def readable(path: Path) -> None:
    """Make a file readable for a jail's user; its private parent folder stops other users."""
    path.chmod(0o755 if path.is_dir() else 0o644)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock while the block runs; it ends with the process."""
    with (private_folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_package(scratch: Path) -> Path:
    """Let Deno download the npm package into `scratch`; return its folder."""
    command = [deno.find().path, "cache", "--no-config", "--quiet", f"npm:pyodide@{VERSION}"]
    try:
        subprocess.run(
            command,
            cwd=scratch,
            env=certificates.download_environment() | {"DENO_DIR": str(scratch), "NO_COLOR": "1"},
            check=True,
            capture_output=True,
            timeout=FETCH_SECONDS,
        )
    except subprocess.CalledProcessError as exc:
        words = exc.stderr.decode(errors="replace").strip()[-500:]
        raise _not_fetched(words) from None
    except (OSError, subprocess.SubprocessError) as exc:
        raise _not_fetched(str(exc)) from None
    result = [path.parent for path in scratch.rglob("pyodide.asm.wasm")]
    if not result:
        raise _not_fetched("the package lacks files that it should have")
    return result[0]


def _not_fetched(why: str) -> BackendUnavailableError:
    hint = "Type: atoll pyodide setup (with a network), or give index_url."
    return BackendUnavailableError(
        deno.BACKEND, f"Pyodide could not be fetched: {certificates.explain(why)}", hint
    )

"""Installs pure Python packages for guests, in a folder that each sees as /app/site-packages.

The guest's own Python compiles them once: compiling urllib3 in each guest would take more than a
billion instructions.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.config import SandboxConfig, cache_folder
from atoll.errors import SandboxError
from atoll.launch.interpreter import resolve
from atoll.packages import download
from atoll.packages.build import unpack
from atoll.packages.target import Target
from atoll.policy import ExecutionPolicy, Mount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.backends.wasm.build import Built

_PLACE = "/packages"
_COMPILE = (
    "import compileall, py_compile\n"
    f"compileall.compile_dir({_PLACE!r}, quiet=2, force=True, stripdir={_PLACE!r},"
    " invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
)


def package_folder(built: Built) -> Path:
    """Return the folder of packages for this component's Python."""
    version = ".".join(map(str, built.python[:2]))
    folder = cache_folder() / "wasm" / f"site-packages-{version}"
    if not folder.is_dir():  # otherwise the cache may be read-only
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # guests read it as another user
    return folder


def installed(built: Built) -> tuple[str, ...]:
    """Return the installed packages, as name-version."""
    result = package_folder(built).glob("*.dist-info")
    return tuple(sorted(path.name.removesuffix(".dist-info") for path in result))


def target(built: Built) -> Target:
    """Return the target of packages by name for this component's Python."""
    version = ".".join(map(str, built.python[:2]))
    flags = f"--platform=any --implementation=py --abi=none --python-version={version}"
    return Target(
        key=f"wasm-{version}",
        label=f"Python {version} in WebAssembly (pure Python wheels only)",
        interpreter=resolve(None),
        flags=tuple(flags.split()),
        compiled=False,
        finish=lambda folder: asyncio.run(_compile(str(folder))),
    )


def install(built: Built, names: Sequence[str]) -> tuple[str, ...]:
    """Install packages and their dependencies; return the new ones. PackageError if not pure."""
    before, folder, chosen = set(installed(built)), package_folder(built), target(built)
    with tempfile.TemporaryDirectory(prefix="packages-", dir=folder.parent) as scratch:
        download.by_hand(names, chosen, Path(scratch))
        site = Path(scratch) / "site"
        site.mkdir()
        unpack(Path(scratch) / "wheels", site, chosen)
        asyncio.run(_compile(str(site)))
        with open(f"{folder}.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for entry in sorted(site.iterdir()):
                _replace(entry, folder)
    return tuple(name for name in installed(built) if name not in before)


async def _compile(folder: str) -> None:
    from atoll.backends.wasm.sandbox import PythonSandbox  # noqa: PLC0415 - it needs this module

    _set_modes(folder, 0o777)  # the guest is another user; the parent folder is private
    mount = Mount(source=Path(folder), target=_PLACE, writable=True)
    policy = ExecutionPolicy(fuel_budget=None, mounts=(mount,))
    async with PythonSandbox(SandboxConfig(backend="wasm", policy=policy)) as box:
        await box.initialize()
        result = await box.execute(_COMPILE)
    _set_modes(folder, 0o755)
    if not result.success:
        raise SandboxError(f"the packages could not be compiled: {result.error}")


def _set_modes(folder: str, mode: int) -> None:
    """Set the mode of all folders, and make their files readable whatever the umask."""
    for root, _folders, files in os.walk(folder):
        os.chmod(root, mode)
        for path in (os.path.join(root, name) for name in files):
            if not os.path.islink(path):
                os.chmod(path, 0o644)


def _replace(entry: Path, folder: Path) -> None:
    """Move an entry into place; replace an existing one, and metadata of another version."""
    if entry.name.endswith(".dist-info"):
        package = entry.name.partition("-")[0]
        for old in folder.glob(f"{package}-*.dist-info"):
            shutil.rmtree(old)
    target = folder / entry.name
    if target.is_dir():
        shutil.rmtree(target)
    entry.replace(target)

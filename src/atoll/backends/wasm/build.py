"""Builds the component once: from the guest's files by componentize-py, compiled by wasmtime.

    sources + versions ──hash──▶ key ──▶ <cache>/wasm/<key>/python.wasm, python.cwasm, facts.json

A finished folder appears atomically, by a rename; a lock keeps two processes from building it.
SECURITY: compiled code is trusted when it is loaded, so only this user may write to the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.backends.wasm import engine
from atoll.config import cache_folder
from atoll.errors import (
    BackendUnavailableError,
    ComponentMissingError,
    ConfigError,
    SandboxStartError,
)
from atoll.extras import hint as install_hint
from atoll.launch.interpreter import GUEST_FOLDER, guest_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.config import SandboxConfig
    from atoll.packages.progress import Progress

SOURCES = Path(__file__).resolve().parent / "component"
SECONDS = {"build": 15.0, "compile": 30.0, "inspect_component": 2.0}
"""About how many seconds each step takes, for the progress bar."""
_COMPONENTIZE = "import sys, componentize_py; sys.exit(componentize_py.script())"
_found: dict[Path, Built] = {}
DEFAULT_BINARY = Path("bin/python.wasm")
"""A component in the current folder, used instead of Atoll's own build."""
COMPONENT, MODULE = b"\0asm\x0d\0\1\0", b"\0asm\1\0\0\0"
"""How a file begins that is a WebAssembly component, or a module."""
WASM, IMAGE, FACTS = "python.wasm", "python.cwasm", "facts.json"


@dataclass(frozen=True, slots=True)
class Built:
    """A component that is ready to run."""

    folder: Path
    python: tuple[int, ...]
    cells: tuple[int, int, int] | None
    """Addresses by which its Python is interrupted; None if it can only be killed."""

    @property
    def image(self) -> str:
        """The compiled component."""
        return str(self.folder / IMAGE)


def chosen(config: SandboxConfig) -> Path | None:
    """Return the component that a caller has: the one given, or DEFAULT_BINARY if it exists."""
    if config.wasm_binary_path is not None:
        return config.wasm_binary_path
    default = DEFAULT_BINARY.absolute()
    return default if default.is_file() else None


def find(binary: Path | None = None) -> Built | None:
    """Return the component if it was built; BackendUnavailableError names the missing part."""
    try:
        folder = _folder(binary)
    except PackageNotFoundError as exc:
        reason = f"{exc.name} is not installed"
        raise BackendUnavailableError("wasm", reason, install_hint("wasm")) from None
    if folder not in _found and (built := _read(folder)) is not None:
        _found[folder] = built
    return _found.get(folder)


def ensure(binary: Path | None, progress: Progress) -> Built:
    """Return the component; build it if needed."""
    if (result := find(binary)) is not None:
        return result
    folder = _folder(binary)
    with _locked(folder):
        if (result := _read(folder)) is None:
            _make(folder, binary, progress)
            result = _read(folder)
    assert result is not None
    return result


def write_component(target: Path, progress: Progress) -> None:
    """Build only the component and write it to `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="atoll-build-") as work:
        with progress.step("building CPython with its library", SECONDS["build"]):
            _componentize(Path(work))
        shutil.copyfile(Path(work) / WASM, target)


def _folder(binary: Path | None) -> Path:
    """Return the folder of the component of these sources and tools, or of `binary`."""
    facts = _sources() if binary is None else (_hash_of(binary),)
    facts += (engine.SETTINGS, engine.runtime_version(), platform.machine())
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    return cache_folder() / "wasm" / key[:32]


@functools.cache
def _sources() -> tuple[str, ...]:
    """Return all source files of a component."""
    facts = [version("componentize-py"), version("cloudpickle"), guest_digest()]
    for file in sorted(SOURCES.iterdir()):
        if file.is_file():
            facts += [file.name, hashlib.sha256(file.read_bytes()).hexdigest()]
    return tuple(facts)


def _hash_of(binary: Path) -> str:
    if not binary.is_file():
        raise ComponentMissingError(
            f"no WebAssembly component {binary}: make one with `atoll wasm build --output {binary}`"
            ", or leave wasm_binary_path out"
        )
    try:
        with binary.open("rb") as file:
            head = file.read(len(COMPONENT))
            if head != COMPONENT:
                kind = "a WebAssembly module" if head == MODULE else "not a WebAssembly component"
                raise _unusable(binary, kind)
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise ConfigError(f"{binary} cannot be read: {exc.strerror}") from None


def _unusable(binary: Path, kind: str) -> ConfigError:
    """Return the error for a file that Atoll did not build."""
    return ConfigError(
        f"{binary} is {kind}, and the backend wasm runs only components that Atoll makes (a plain "
        f"WASI python.wasm cannot be used): make one with `atoll wasm build --output {binary}`, or "
        f"remove it and leave wasm_binary_path out"
    )


def _read(folder: Path) -> Built | None:
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="ascii"))
        built = Built(folder, tuple(facts["python"]), facts["cells"] and tuple(facts["cells"]))
        for path in (folder.parent, folder, folder / IMAGE, folder / FACTS):
            _check_owner(path)
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, OSError) as exc:
        raise SandboxStartError("cache", f"{folder} cannot be used ({exc}): remove it") from None
    return built


def _check_owner(path: Path) -> None:
    info = path.stat()
    if info.st_uid not in (os.geteuid(), 0) or info.st_mode & 0o022:
        reason = f"{path} can be written by others: remove it, or set ATOLL_CACHE"
        raise SandboxStartError("cache", reason)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _make(folder: Path, binary: Path | None, progress: Progress) -> None:
    """Build everything in a temporary folder, then rename it."""
    prefix = f"making-{folder.name}-"
    for left in folder.parent.glob(f"{prefix}*"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as work:
        made = Path(work) / "made"
        made.mkdir(mode=0o755)
        if binary is None:
            with progress.step("building CPython with its library", SECONDS["build"]):
                _componentize(made)
        else:
            shutil.copyfile(binary, made / WASM)
        try:
            _compile(made, progress)
        except SandboxStartError:
            if binary is None:
                raise
            raise _unusable(binary, "a component of another kind, or damaged") from None
        for file in made.iterdir():
            file.chmod(0o644)  # guests read it as another user, whatever the umask
        made.chmod(0o755)
        if folder.exists():  # without its image
            shutil.rmtree(folder)
        made.rename(folder)


def _compile(made: Path, progress: Progress) -> None:
    """Compile the component in the folder `made`, and find out how to use it."""
    with progress.step("compiling it for this machine", SECONDS["compile"]):
        _run_part("engine", made / WASM, made / IMAGE)
    with progress.step("trying it", SECONDS["inspect_component"]):
        facts = _run_part("inspect_component", made / IMAGE)
        (made / FACTS).write_text(facts, encoding="ascii")


def _componentize(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="atoll-component-") as work:
        sources = Path(work) / "sources"
        shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__", "*.wit"))
        shutil.copytree(
            GUEST_FOLDER, sources / "guest", ignore=shutil.ignore_patterns("__pycache__")
        )
        cloudpickle = Path(str(import_module("cloudpickle").__file__)).parent
        shutil.copytree(cloudpickle, sources / "cloudpickle")
        tool = [sys.executable, "-c", _COMPONENTIZE, "-d", str(SOURCES / "sandbox.wit")]
        what = ["-w", "sandbox", "componentize", "app", "-p", str(sources)]
        _run([*tool, *what, "-o", str(target / WASM)])


def _run_part(module: str, *files: Path) -> str:
    """Run a module in its own process, so that a crash of wasmtime does not end this one."""
    return _run([sys.executable, "-m", f"atoll.backends.wasm.{module}", *map(str, files)])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip()[-2000:]
        raise SandboxStartError("wasm build", f"it failed: {last}")
    return done.stdout

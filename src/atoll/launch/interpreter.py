"""Which Python the guest runs: found, asked for its version, and where its files are.

The guest's own files are compiled for it here, as they lie on a read-only mount in a jail.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from atoll import guest
from atoll.errors import BackendUnavailableError
from atoll.guest.entry import bundle
from atoll.jail.supervisor.spec import GUEST_CODE, GUEST_HOME, PACKAGES, Bind
from atoll.jail.walls import users

if TYPE_CHECKING:
    from atoll.jail.supervisor.spec import ImageRoot

OLDEST, COMPLAINS = (3, 8), (3, 15)
"""The oldest Python that guests run on, and the first that prints what .pth files name in vain."""
EMPTY_FILE = str(Path(guest.__file__).resolve().parents[1] / "py.typed")
GUEST_FOLDER = str(Path(guest.__file__).resolve().parent)
_ASK = (
    "import sys, json, compileall, runpy; compileall.compile_dir(sys.argv[1], quiet=2); "
    "runpy.run_path(sys.argv[1] + '/entry/bundle.py')['write'](sys.argv[1]); "
    "print(json.dumps([sys.version_info[:3], sys.prefix, sys.base_prefix, sys.exec_prefix, "
    "sys.base_exec_prefix, getattr(sys, '_base_executable', sys.executable), sys.abiflags]))"
)
_TIMEOUT_SECONDS = 30
_VERSION = re.compile(r"Python (\d+)\.(\d+)")
_PATH = "/usr/local/bin:/usr/bin:/bin"
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootImage:
    """An image whose files are a guest's root."""

    digest: str
    reference: str
    """How it was named."""
    root: ImageRoot
    env: tuple[str, ...] = ()
    """Its variables, as NAME=value."""
    workdir: str | None = None
    """Where cells and commands start, if that is not the working folder."""
    entrypoint: tuple[str, ...] = ()
    """The program that runs beside the cells, if one is to."""
    many_files: bool = False
    """Whether it has too much in /app or at home to be copied for guests in advance."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python and the folders that it needs to be seen with."""

    path: str
    version: tuple[int, int, int]
    folders: tuple[str, ...]
    links: tuple[str, ...]
    """Paths outside of the folders at which the interpreter itself has to be found."""
    base: str
    """The executable that a venv was made from, or itself, with all links followed."""
    prefix: str
    """Where it finds packages: a venv's folder, or that of the installation."""
    packages: str | None = None
    """A host folder of packages by name, which come before those of the prefix."""
    image: RootImage | None = None
    """The image that it is in; its paths are then paths of the image."""
    launcher: tuple[str, ...] = ()
    """Words before its path on a command line, if it is started by a loader: see host_python."""
    carried: tuple[Bind, ...] = ()
    """Its files, if it is this machine's in an image without one."""
    cells: bool = True
    """Whether it runs cells; else only the runtime, for commands and files."""
    silenced: tuple[str, ...] = ()
    """Its .pth files that a jail shows as empty: see `_editable_installs`."""

    @property
    def identity(self) -> tuple[str, tuple[int, int, int], str]:
        """Equal for two names of one interpreter, different for two interpreters."""
        return self.base, self.version, self.prefix

    @property
    def root(self) -> ImageRoot | None:
        """What a jail, or a zygote, needs to have the image as its root; None without an image."""
        return None if self.image is None else self.image.root

    def in_image(self, image: RootImage) -> Interpreter:
        """Return the same interpreter with another root of the same image."""
        return replace(self, image=image)


def resolve(python: str | None) -> Interpreter:
    """Return the interpreter to use; BackendUnavailableError says why it is refused."""
    if python is None:
        return _this_interpreter()
    path = locate(python)
    return _ask(path, os.stat(path).st_mtime_ns)


def _require_readable(python: Interpreter) -> None:
    """Raise BackendUnavailableError if users other than the owner cannot read the interpreter.

    For a host that runs guests as another user. What lies on the way to its folders is not asked
    for, as a jail binds them by descriptor.
    """
    for folder, paths in _needed(python).items():
        for path in paths:
            if closed := _closed(path):
                reason = f"the guest's user cannot read {closed}"
                raise _unavailable(reason, f"Type: chmod -R go+rX {shlex.quote(folder)}")


def _needed(python: Interpreter) -> dict[str, tuple[str, ...]]:
    """Return samples of the files that a guest reads, by the folder to open for it."""
    library = f"lib/python{python.version[0]}.{python.version[1]}"
    names = ("", "pyvenv.cfg", "lib", library, f"{library}/site-packages")
    samples = {
        folder: tuple(os.path.join(folder, name).rstrip("/") for name in names)
        for folder in python.folders
    }
    for folder in python.folders:
        if _inside(python.path, folder):
            samples[folder] += (os.path.dirname(python.path), python.path)
    return {**samples, GUEST_FOLDER: (GUEST_FOLDER, f"{GUEST_FOLDER}/__init__.py")}


def _closed(path: str) -> str:
    """Return the path if it is there and not everyone may read it; empty otherwise."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    needed = 0o005 if stat.S_ISDIR(mode) else 0o004
    return "" if mode & needed == needed else path


@functools.cache
def guest_digest() -> str:
    """Return a digest of the guest's files, for caches of their builds."""
    whole = hashlib.sha256()
    for file in sorted(Path(GUEST_FOLDER).rglob("*.py")):
        name = str(file.relative_to(GUEST_FOLDER))
        whole.update(hashlib.sha256(name.encode() + b"\0" + file.read_bytes()).digest())
    return whole.hexdigest()


def locate(python: str) -> str:
    """Return the absolute path of a command or file; BackendUnavailableError if it cannot run."""
    python = os.path.expanduser(python)
    if path := shutil.which(python):
        return os.path.abspath(path)
    if os.path.isdir(python):
        reason = f"{python!r} is a folder"
    elif os.path.exists(python):
        reason = f"{python!r} is not executable"
    else:
        reason = f"there is no Python interpreter {python!r}"
    raise _unavailable(reason, "Give the path of a Python 3.8 or newer, such as .venv/bin/python.")


def check_version(path: str) -> tuple[int, ...]:
    """Return the version that `python --version` prints; refuse one below 3.8."""
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise _unavailable(f"`{path} --version` fails: {exc}", "Is it a Python?") from None
    said = (done.stdout or done.stderr).strip()
    match = _VERSION.match(said)
    if not match:
        first = said.partition("\n")[0][:80]
        reason = f"{path} is not a Python: `--version` prints {first!r}"
        raise _unavailable(reason, "Give the path of a Python 3.8 or newer.")
    version = int(match[1]), int(match[2])
    if version < OLDEST:
        reason = f"{path} is {said[:80]}, which is too old"
        raise _unavailable(reason, "Python 3.8 or newer is needed.")
    return version


@functools.cache
def _this_interpreter() -> Interpreter:
    _require_gil(sys.executable, sys.abiflags)
    if bundle.write(GUEST_FOLDER):
        import compileall  # noqa: PLC0415 - slow to import, and seldom needed

        compileall.compile_dir(GUEST_FOLDER, quiet=2)
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    base = getattr(sys, "_base_executable", sys.executable)
    return _make(sys.executable, sys.version_info[:3], prefixes, base)


@functools.lru_cache(maxsize=64)
def _ask(path: str, _changed: int) -> Interpreter:
    check_version(path)
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ASK, GUEST_FOLDER],
            capture_output=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
        version, *prefixes, base, flags = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise _unavailable(f"{path} does not run: {exc}", "Is its venv whole?") from None
    _require_gil(path, flags)
    return _make(path, tuple(version), tuple(prefixes), base)


def _require_gil(path: str, abi_flags: str) -> None:
    """Raise BackendUnavailableError for a free-threaded build: no test has run on one."""
    if "t" in abi_flags:
        reason = f"{path} is a free-threaded build of Python, which is not supported"
        raise _unavailable(reason, "Give the path of an ordinary build, such as python3.14.")


def _make(
    path: str, version: tuple[int, int, int], prefixes: tuple[str, ...], base: str
) -> Interpreter:
    """With the folders it needs, and itself wherever a link on the way to it stands."""
    path = os.path.abspath(path)
    if not os.path.exists(os.path.join(os.path.dirname(path), os.pardir, "pyvenv.cfg")):
        path = os.path.realpath(path)  # only a venv's python has to be called by its own name
    folders = _outermost({os.path.abspath(prefix) for prefix in prefixes})
    steps = {step for start in (path, base) for step in _links(start)}
    shown = (*folders, *_SYSTEM)
    links = tuple(sorted(s for s in steps if not any(_inside(s, f) for f in shown)))
    python = Interpreter(
        path,
        version,
        folders,
        links,
        os.path.realpath(base),
        os.path.realpath(prefixes[0]),
        silenced=_editable_installs(prefixes[0], version, shown),
    )
    if users.may_switch():
        _require_readable(python)
    return python


def _editable_installs(
    prefix: str, version: tuple[int, int, int], shown: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the .pth files that name only folders that a jail does not show.

    From Python 3.15 on, each start of an interpreter prints a line for each such folder.
    """
    if version < COMPLAINS:
        return ()
    site = os.path.join(prefix, "lib", f"python{version[0]}.{version[1]}", "site-packages")
    return tuple(
        str(file)
        for file in sorted(Path(site).glob("*.pth"))
        if not any(_adds_something(line.strip(), site, shown) for line in _lines_of(file))
    )


def _adds_something(line: str, site: str, shown: tuple[str, ...]) -> bool:
    """Return whether a line of a .pth file has an effect in a jail."""
    if not line or line.startswith("#"):
        return False
    folder = os.path.normpath(os.path.join(site, line))
    return line.startswith(("import ", "import\t")) or any(_inside(folder, s) for s in shown)


def _lines_of(file: Path) -> list[str]:
    """Return the lines of a .pth file; if it cannot be read, a line that has an effect."""
    try:
        return file.read_text("utf-8-sig", "surrogateescape").splitlines()
    except OSError:
        return ["import "]


def _outermost(folders: set[str]) -> tuple[str, ...]:
    """Return the folders outside each other and the system's; refuse those that show too much."""
    wanted = [folder for folder in folders if not any(_inside(folder, s) for s in _SYSTEM)]
    home = os.path.realpath(os.path.expanduser("~"))
    for folder in wanted:
        if _inside(home, os.path.realpath(folder)):
            reason = f"its files are in {folder}, which holds your home folder too"
            raise _unavailable(reason, "Make a venv and give its python.")
        if _inside(folder, GUEST_CODE) or _inside(GUEST_CODE, folder):
            reason = f"its files are in {folder}, where a sandbox finds Atoll's own code"
            raise _unavailable(reason, "Install it in another folder, such as /srv/atoll.")
    nested = {f for f in wanted for other in wanted if f != other and _inside(f, other)}
    return tuple(sorted(set(wanted) - nested))


def _links(path: str) -> list[str]:
    """`path` and each link's target in turn."""
    chain = [os.path.abspath(path)]
    while os.path.islink(chain[-1]) and len(chain) < 40:
        target = os.path.join(os.path.dirname(chain[-1]), os.readlink(chain[-1]))
        chain.append(os.path.normpath(target))
    chain.append(str(Path(path).resolve()))
    return chain


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _unavailable(reason: str, hint: str) -> BackendUnavailableError:
    return BackendUnavailableError("native", reason, hint)


def python_binds(interpreter: Interpreter) -> list[Bind]:
    """Return what a jail has to be given, so that the interpreter runs in it."""
    return [
        *(Bind(source=folder, target=folder) for folder in interpreter.folders),
        *(Bind(source=os.path.realpath(link), target=link) for link in interpreter.links),
        *(Bind(source=EMPTY_FILE, target=file) for file in interpreter.silenced),
        *interpreter.carried,
    ]


def package_binds(interpreter: Interpreter) -> list[Bind]:
    """Return what a jail has to be given, so that the guest sees its packages by name."""
    packages = interpreter.packages
    return [] if packages is None else [Bind(source=packages, target=PACKAGES)]


def site_code(interpreter: Interpreter, *, jailed: bool = True, pth_files: bool = True) -> str:
    """Return statements for the guest's start: its packages come before the interpreter's.

    SECURITY: a .pth file runs code, so a zygote does not read it; a guest does, behind its walls.
    """
    if interpreter.packages is None:
        return ""
    folder = PACKAGES if jailed else interpreter.packages
    code = _INSERT.format(folder)
    return code + (f"import site; site.addsitedir({folder!r})\n" if pth_files else "")


_INSERT = (
    "import sys; at = [i for i, path in enumerate(sys.path) if path.endswith('-packages')]\n"
    "sys.path.insert(at[0] if at else len(sys.path), {!r})\n"
)


def environment(interpreter: Interpreter, *, jailed: bool = True) -> dict[str, str]:
    """All that a guest gets of an environment: nothing is inherited, but for an image's own."""
    packages = PACKAGES if jailed else interpreter.packages
    more = {} if interpreter.packages is None else {"PYTHONPATH": str(packages)}
    programs = f"{packages}/bin:" if more else ""
    if interpreter.image is not None:
        own = image_environment(interpreter.image)
        return {**_NUMERIC, **own, **more, "PATH": programs + own["PATH"]}
    return {
        **more,
        "PATH": f"{os.path.dirname(interpreter.path)}:{programs}{_PATH}",
        "HOME": GUEST_HOME,
        "LANG": "C.UTF-8",
        **_NUMERIC,
    }


def image_environment(image: RootImage) -> dict[str, str]:
    """Return an image's variables. HOME is the guest's own folder: it can be written to."""
    own = dict(variable.split("=", 1) for variable in image.env)
    return {"PATH": IMAGE_PATH, "LANG": "C.UTF-8", **own, "HOME": GUEST_HOME}


_NUMERIC = {"MPLBACKEND": "Agg", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

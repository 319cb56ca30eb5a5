"""Install Atoll from this folder into a virtual environment, and say what is being done.

    python tools/install.py .venv                  the library alone: no dependencies, seconds
    python tools/install.py .venv dev,data,wasm    with these extras: uv downloads side by side,
                                                   pip does it where uv cannot

Runs on a bare Python of any supported version, before anything is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

OLDEST = (3, 11)
NOISE = "is ignored: it is neither a file nor a directory"
"""pip says so of every package for every index that is a folder and does not have it."""


def main(folder: str, extras: str = "") -> int:
    """Make the environment if it is not there, install, and return an exit code."""
    started = time.monotonic()
    python = Path(folder) / "bin" / "python"
    if sys.version_info < OLDEST:
        needed = ".".join(map(str, OLDEST))
        return _fail(
            f"Python {needed} or newer is needed; {sys.executable} is {sys.version.split()[0]}.",
            f"Type: make PYTHON=/path/to/python{needed}",
        )
    if not _works(python) and not _make_environment(folder):
        return 1
    what = "Atoll" if not extras else "Atoll and what its tests use (some minutes the first time)"
    print(f"Installing {what} into {folder} ...", flush=True)
    installed = _with_uv(python, extras) if extras else False
    if not installed and not _with_pip(python, extras):
        return _fail("pip could not install it: see above.", "Type the same command again.")
    if extras:
        print("Compiling ...", flush=True)
        command = [str(python), "-m", "compileall", "-qq", "-j", "0", f"{folder}/lib"]
        _run(command, quiet=True)  # pip would do it on one core; some files are not meant for it
    print(f"Installed in {time.monotonic() - started:.0f} s.\n", flush=True)
    return 0


def _works(python: Path) -> bool:
    """Return whether the environment is there and has pip; one without is made anew."""
    if not python.exists():
        return False
    return _run([str(python), "-c", "import pip"], quiet=True) == 0


def _make_environment(folder: str) -> bool:
    print(f"Making a virtual environment in {folder} with {sys.executable} ...", flush=True)
    if _run([sys.executable, "-m", "venv", "--clear", folder], quiet=True) == 0:
        return True
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    _fail(
        f"{sys.executable} cannot make virtual environments (its module ensurepip is missing?).",
        f"On Debian and Ubuntu type: sudo apt install python3-venv (or python{version}-venv)",
    )
    return False


def _with_uv(python: Path, extras: str) -> bool:
    """Return whether uv did it: it does not read pip's settings, so it may find no index."""
    uv = python.parent / "uv"
    if not uv.exists() and _pip(python, "uv") != 0:
        return False
    source = f".[{extras}]"
    command = [str(uv), "pip", "install", "--quiet", "--python", str(python), "--editable", source]
    if _run(command) == 0:
        return True
    print("uv could not install it; trying pip, which takes longer ...", flush=True)
    return False


def _with_pip(python: Path, extras: str) -> bool:
    source = f".[{extras}]" if extras else "."
    return _pip(python, "--no-compile", "--editable", source) == 0


def _pip(python: Path, *what: str) -> int:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return _run([*command, *what])


def _run(command: list[str], *, quiet: bool = False) -> int:
    """Run a command and return its exit code; show its errors without the noise."""
    done = subprocess.run(
        command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    for line in "" if quiet else done.stdout.splitlines():
        if NOISE not in line:
            print(line, file=sys.stderr, flush=True)
    return done.returncode


def _fail(problem: str, advice: str) -> int:
    print(f"{problem}\n{advice}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    sys.exit(main(*sys.argv[1:]))

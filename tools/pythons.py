"""Run the tests that need no optional backend on every supported Python that is found.

    python tools/pythons.py                 all that are found: on PATH, /usr/bin, pyenv
    python tools/pythons.py 3.12 /opt/py    only these: versions, or paths of interpreters
    python tools/pythons.py sid [3.15]      those of Debian sid, in a root that is made once

Each gets an environment of its own in .venv-pythons/, made by uv (or venv and pip).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import sid_root

SUPPORTED = ("3.11", "3.12", "3.13", "3.14", "3.15")
BACKENDS = "native,daemon,restricted"
WITH_PYODIDE = (
    "tests/unit/test_registry.py::test_auto_goes_on_to_pyodide_where_native_is_not_to_be_had"
)
TESTS = (
    "tests/text", "tests/guard", "tests/explore", "tests/files", "tests/unit", "tests/contract",
    "tests/cli/test_cli_run.py", "tests/cli/test_cli_arguments.py",
    "tests/environment", "tests/escape", "--ignore=tests/unit/test_bench.py",
    "--ignore=tests/unit/test_certificates.py",
    "--ignore=tests/unit/test_walks.py",
    f"--deselect={WITH_PYODIDE}",
)  # fmt: skip
"""What depends on the interpreter; the rest of the suite runs on one."""
EXTRAS = "state,wasm,search,guard,archive,web,toon,llm,network,server,remote,mcp,jupyter"
PACKAGES = (
    "pytest>=8.3", "pytest-asyncio>=0.24", "pytest-timeout>=2.3", "pytest-xdist>=3.6",
    "pandas>=2.2", "langchain-core>=0.3", "requests>=2.32", "httpx>=0.28",
)  # fmt: skip
FOLDER = Path(os.environ.get("ATOLL_PYTHONS", ".venv-pythons"))


def main(wanted: list[str]) -> int:
    """Run the tests on each, print a line for each, and return 1 if one failed."""
    if sid_root.SUITE in wanted:
        return main_in_sid([version for version in wanted if version != sid_root.SUITE])
    found = interpreters(wanted)
    if not found:
        print(f"None of Python {', '.join(SUPPORTED)} was found.", file=sys.stderr)
        return 1
    results = {}
    for version, python in found.items():
        print(f"\n== Python {version} ({python})", flush=True)
        results[version] = "failed to install"
        if environment := install(version, python):
            code = run_tests(environment)
            results[version] = "passed" if code == 0 else f"FAILED (pytest's exit code {code})"
    print()
    for version, result in results.items():
        print(f"Python {version:8} {result}")
    return int(any(result != "passed" for result in results.values()))


def main_in_sid(wanted: list[str]) -> int:
    """Run this program in the root of Debian sid."""
    command = ["python3", "tools/pythons.py", *(wanted or sid_root.VERSIONS)]
    try:
        return sid_root.run(command, {"ATOLL_PYTHONS": sid_root.ENVIRONMENTS})
    except sid_root.RootError as error:
        print(error, file=sys.stderr)
        return 1


def interpreters(wanted: list[str]) -> dict[str, str]:
    """Return one interpreter for each full version that is found and supported."""
    pyenv = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))
    named = [shutil.which(f"python{version}") for version in SUPPORTED]
    candidates = ["/usr/bin/python3", *map(str, pyenv), *named, sys.executable]
    candidates += [one for one in wanted if os.sep in one]
    versions = {one: version_of(one) for one in candidates if one is not None}
    found: dict[str, str] = {}
    for path, version in versions.items():
        if version.rpartition(".")[0] in SUPPORTED and is_wanted(path, version, wanted):
            found.setdefault(version, path)
    return dict(sorted(found.items(), key=lambda item: [int(n) for n in item[0].split(".")]))


def is_wanted(path: str, version: str, wanted: list[str]) -> bool:
    """Return whether an interpreter was asked for, by its path or version; all are if none was."""
    return not wanted or any(path == one or f"{version}.".startswith(f"{one}.") for one in wanted)


def version_of(python: str) -> str:
    """Return the version as 3.12.1; empty if it does not run."""
    try:
        said = subprocess.run([python, "-V"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    match = re.fullmatch(r"Python (\d+\.\d+\.\d+)\s*", said)
    return match[1] if match else ""


def install(version: str, python: str) -> Path | None:
    """Return the Python of an environment with the library and what the tests import."""
    folder = FOLDER / version
    made = folder / "bin" / "python"
    uv = shutil.which("uv", path=f".venv/bin{os.pathsep}{os.environ.get('PATH', '')}")
    wanted = ["--editable", f".[{EXTRAS}]", *PACKAGES]
    steps = [[python, "-m", "venv", str(folder)]] if not made.exists() else []
    pip = [str(made), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    fast = [uv or "uv", "pip", "install", "--quiet", "--python", str(made), *wanted]
    for step in steps:
        if not succeeds(step):
            return None
    return made if (uv and succeeds(fast)) or succeeds(pip) else None


def run_tests(python: Path) -> int:
    """Return pytest's exit code."""
    environment = {
        **os.environ,
        "ATOLL_TEST_BACKENDS": BACKENDS,
        "ATOLL_CACHE": str((python.parent.parent / "cache").resolve()),
    }
    command = [str(python), "-m", "pytest", "-q", "-r", "fE", "-n", "2", "-p", "no:cacheprovider"]
    code = subprocess.run([*command, *TESTS], env=environment, check=False).returncode
    # Faults count the processes of their own test process, so they run apart, as in the Makefile.
    environment["ATOLL_TEST_BACKENDS"] = "native"
    faults = [*command, "--dist", "loadfile", "tests/faults"]
    return subprocess.run(faults, env=environment, check=False).returncode or code


def succeeds(command: list[str]) -> bool:
    """Run a command quietly, and show what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{' '.join(command)}\n{done.stderr[-2000:]}", file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    sys.exit(main(sys.argv[1:]))

"""Each way to install Atoll gives a command that runs code in a jail. Downloads what builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
PREFIX = "src/atoll/"


class Built(NamedTuple):
    """What a release consists of, and the folder that it was built from."""

    source: Path
    wheel: Path
    sdist: Path


def run(*command: str | Path, **variables: str | Path) -> str:
    """Run a command where no module of this repository is in sight; return its stdout."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = {**kept, **{key: str(value) for key, value in variables.items()}}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd="/", env=environment
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def tracked() -> list[str]:
    return run("git", "-C", ROOT, "ls-files", "-z").split("\0")[:-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build a wheel and a source archive of the tracked files."""
    if UV is None:
        pytest.skip("needs uv")
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in tracked():
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    run(UV, "build", "--quiet", "--out-dir", folder, source)
    folder.chmod(0o755)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(source, wheel, sdist)


def check(command: Path, home: Path) -> None:
    """Check that an installed command runs code in a jail, as its user would type it."""
    where = {"HOME": home, "ATOLL_CACHE": home / "cache", "ATOLL_DAEMON_SOCKET": home / "none"}
    assert run(command, "--version", **where).startswith("atoll ")
    said = run(command, "run", "--min-isolation", "jailed", "-c", "print(6 * 7)", **where)
    assert said == "42\n"


def environment(folder: Path) -> Path:
    """Make a virtual environment; return its folder of programs."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin"


def test_wheel_and_source_archive_have_every_file(built: Built) -> None:
    wanted = {name.removeprefix("src/") for name in tracked() if name.startswith(PREFIX)}
    wanted = {name for name in wanted if (ROOT / "src" / name).exists()}
    with zipfile.ZipFile(built.wheel) as wheel:
        assert wanted <= set(wheel.namelist())
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in wanted} | {"hatch_build.py", "LICENSE"} <= names


@pytest.mark.parametrize("what", ["wheel", "sdist", "editable", "offline"])
def test_pip_installs(built: Built, tmp_path: Path, what: str) -> None:
    tmp_path.chmod(0o755)
    programs = environment(tmp_path / "venv")
    source = {"editable": ("--editable", built.source), "sdist": (built.sdist,)}
    options = ("--no-index",) if what == "offline" else ()
    chosen = source.get(what, (built.wheel,))
    run(programs / "pip", "install", "--quiet", *options, *chosen)
    check(programs / "atoll", tmp_path)


def test_uv_tool_installs(built: Built, tmp_path: Path) -> None:
    assert UV is not None
    places = {"UV_TOOL_DIR": tmp_path / "tools", "UV_TOOL_BIN_DIR": tmp_path / "bin"}
    run(UV, "tool", "install", "--python", sys.executable, built.wheel, **places)
    check(tmp_path / "bin" / "atoll", tmp_path)


def test_pipx_installs(built: Built, tmp_path: Path) -> None:
    pipx = shutil.which("pipx")
    if pipx is None:
        pytest.skip("needs pipx (apt-get install pipx)")
    places = {"PIPX_HOME": tmp_path / "pipx", "PIPX_BIN_DIR": tmp_path / "bin"}
    run(pipx, "install", "--python", sys.executable, built.wheel, **places)
    check(tmp_path / "bin" / "atoll", tmp_path)

"""Root whose umask shuts others out: sandboxes work, and an unreadable interpreter is named."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hosts_support import run_atoll

import atoll

if TYPE_CHECKING:
    from pathlib import Path

UMASKS = (0o027, 0o077)
POOL = """
import asyncio
from atoll.config import SandboxConfig
from atoll.hosting.pool import Pool, PoolSettings

async def main():
    async with Pool(PoolSettings(tiers={"bare": ()})) as pool:
        box = await pool.open(SandboxConfig())
        print((await box.execute("6 * 7")).value)
        await box.destroy()

asyncio.run(main())
"""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root's guests are another user")


@pytest.mark.spec("R0.20")
@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_a_jail_is_built_under_any_umask(umask: int) -> None:
    done = run_atoll("run", "--backend", "native", "-c", "print(6 * 7)", umask=umask)
    assert (done.stdout, done.stderr) == ("42\n", "")


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_files_that_a_guest_makes_in_a_host_folder_keep_to_the_umask(
    tmp_path: Path, umask: int
) -> None:
    code = "open('/data/made', 'w').write('x')"
    arguments = ("--backend", "native", "--mount", f"{tmp_path}:/data:rw", "-c", code)
    assert run_atoll("run", *arguments, umask=umask).returncode == 0
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_zygote_and_its_guests_start_under_a_closed_umask() -> None:
    done = subprocess.run(
        [sys.executable, "-c", POOL], capture_output=True, text=True, check=False, umask=0o077
    )
    assert (done.stdout, done.stderr) == ("42\n", "")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that root made with umask 077."""
    folder = tmp_path / "closed env"
    argv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(argv, check=True, umask=0o077)
    return folder


def test_an_environment_that_the_guest_cannot_read_is_named_with_the_chmod(venv: Path) -> None:
    python, command = f"{venv}/bin/python", f"chmod -R go+rX '{venv}'"
    sentence = f"the guest's user cannot read {venv}. Type: {command}"
    with pytest.raises(atoll.BackendUnavailableError, match="cannot read") as caught:
        atoll.create_sandbox(backend="native", python=python)
    assert sentence in str(caught.value)
    done = run_atoll("doctor", "--backend", "native", "--python", python)
    assert sentence in " ".join((done.stdout + done.stderr).split())
    subprocess.run(command, shell=True, check=True)
    with atoll.create_sandbox(backend="native", python=python) as box:
        assert box.execute("6 * 7").value == 42

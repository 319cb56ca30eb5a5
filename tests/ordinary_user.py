"""Programs of tests that are root, run as a user who is not: other walls stand there."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

USER = 12345
SOURCE = Path(__file__).resolve().parents[1] / "src"


def run_as_user(
    *command: str, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as the user, with nothing in its environment but what it needs."""
    plain = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(SOURCE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
    }
    return subprocess.run(
        command,
        user=USER,
        group=USER,
        extra_groups=[],
        env=plain | environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@functools.cache
def python_for_user() -> str:
    """A Python with which the user may run Atoll; the one that runs this if possible."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            if run_as_user(candidate, "-c", "import atoll.factory").returncode == 0:
                return candidate
        except OSError:
            continue
    pytest.skip(f"no Python 3.11 or newer that user {USER} may execute")

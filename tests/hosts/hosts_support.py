"""Run `atoll` as on a host that lacks something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60
"""A bound for a command that hangs, far above what any of them takes."""


def run_atoll(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process; nothing of this one's cached report reaches it."""
    command = [sys.executable, "-m", "atoll", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SECONDS, **options
    )


@pytest.fixture
def private_home(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no daemon answers."""
    return {**os.environ, "HOME": str(tmp_path), "ATOLL_DAEMON_SOCKET": str(tmp_path / "none")}

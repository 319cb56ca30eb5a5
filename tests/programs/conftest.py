"""A project, and `atoll exec` in it as its users start it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Exec = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def machine() -> Iterator[Path]:
    """A folder that every user may enter, unlike those that pytest makes."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def atoll_exec(project: Path) -> Exec:
    """Return a function that runs `atoll exec` in the project, as its users start it."""

    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[Any]:
        argv = [sys.executable, "-m", "atoll", "exec", *words]
        settings = {"cwd": project, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run(argv, **{**settings, **options})

    return run

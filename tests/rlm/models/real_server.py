"""The server of a real model, with a window so small that a document cannot fit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SERVER = Path(__file__).parents[3] / "tools" / "llm_server.py"
WINDOW = 4_096


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """Its address, while the block runs."""
    command = [sys.executable, str(SERVER), "--window", str(WINDOW)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait(30)
    assert server.returncode == 0

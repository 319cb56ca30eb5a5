"""What is frozen runs nothing, whatever its processes were doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from atoll.jail.measure.freezer import Freezer

SPAWN = """
import os, sys
opened = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opened])
"""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_that_waits_for_a_stopped_child_counts_as_stopped(tmp_path: Path) -> None:
    """Its child waits for a FIFO before it runs its program; until then the parent is in vfork."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    parent = subprocess.Popen([sys.executable, "-c", SPAWN, str(fifo)])
    try:
        while _state(parent.pid) != "D":
            assert parent.poll() is None
        freezer = Freezer("", [parent.pid])
        assert freezer.freeze()
        assert _state(parent.pid) == "D", "else the test shows nothing"
        freezer.thaw()
        fifo.open("w").close()
        assert parent.wait(20) == 0
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()

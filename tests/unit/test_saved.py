"""Saved states in the native backend: other interpreters, guests that lie or meddle, what is left."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import venv

import pytest

import atoll
from atoll.guest.state.pickler import load_cloudpickle
from atoll.launch import library
from atoll.state import envelope
from atoll.state.transfer import Inflow, Outflow

CODE = "import enum\nclass E(enum.Enum):\n A = 1\ndef f(n): return n * k\nk = 2; e = E.A\ntext = 'long ' * 10_000"
CHECK = "k = 3\nf(2), e is E.A, len(text)"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A Python without cloudpickle and lz4."""
    folder = tmp_path_factory.mktemp("python") / "bare"
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


def save(code, **options):
    with atoll.create_sandbox(backend="native", **options) as box:
        result = box.execute(code)
        assert result.success, result
        return box.save()


def test_an_interpreter_without_cloudpickle_saves_and_restores(bare_python):
    blob = save(CODE, python=bare_python)
    assert b'"codec": "zlib"' in blob[:500]
    assert len(blob) < 10_000
    for python in (bare_python, None):
        with atoll.create_sandbox(backend="native", python=python, state=blob) as box:
            assert box.execute(CHECK).value == (6, True, 50_000)


def test_a_state_packed_with_lz4_says_so_where_there_is_none(bare_python):
    pytest.importorskip("lz4")
    blob = save(CODE)
    assert b'"codec": "lz4"' in blob[:500]
    with pytest.raises(atoll.StateError, match="saved with lz4"):
        atoll.create_sandbox(backend="native", python=bare_python, state=blob)


def test_a_state_of_another_python_is_refused_before_a_guest_is_started():
    facts = {"size": 1, "codec": "zlib", "left_out": {}}
    blob = envelope.seal(b"x", facts, (3, sys.version_info[1] + 1))
    with pytest.raises(atoll.StateError, match="the guest's is"):
        atoll.create_sandbox(backend="native", state=blob)


@pytest.mark.parametrize("payload", [b"", b"x", b"P" + bytes(21), b"B" + b"\xff" * 30, bytes(1000)])
def test_a_payload_that_is_none_is_refused_in_words(payload):
    blob = envelope.seal(payload, {"size": 1, "codec": "zlib", "left_out": {}}, sys.version_info)
    with pytest.raises(atoll.StateError, match="could not restore"):
        atoll.create_sandbox(backend="native", state=blob)


@pytest.mark.parametrize("path", ["../out.txt", "/app/../out.txt", "a/../../out.txt"])
def test_a_file_of_a_state_that_would_be_elsewhere_is_refused(path):
    name = f"644 {path}".encode()
    block = b"F\x00" + len(name).to_bytes(4, "little") + bytes(16) + name
    blob = envelope.seal(block, {"size": 1, "codec": "zlib", "left_out": {}}, sys.version_info)
    with pytest.raises(atoll.StateError, match="not in the folder"):
        atoll.create_sandbox(backend="native", state=blob)


@pytest.fixture
def no_cloudpickle(monkeypatch):
    monkeypatch.setattr(library, "_host_folder", lambda: None)


def test_without_cloudpickle_processes_run_functions_of_cells_by_default(
    no_cloudpickle, bare_python
):
    """From Python 3.14 on, the default method would need to pickle them."""
    code = (
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "def double(x): return 2 * x\n"
        "with multiprocessing.Pool(2) as pool: doubled = pool.map(double, [1, 2])\n"
        "with ProcessPoolExecutor(2) as pool: (doubled, list(pool.map(double, [3])))\n"
        "(doubled, multiprocessing.get_start_method())"
    )
    with atoll.create_sandbox(backend="native", python=bare_python) as box:
        result = box.execute(code)
    assert result.value == ([2, 4], "fork"), result.stderr


def test_without_cloudpickle_the_standard_library_saves_data_and_names_the_rest(no_cloudpickle):
    with atoll.create_sandbox(backend="native") as box:
        box.execute(
            "import collections, datetime\nshared = [1, 'two', {3: b'4'}]; twice = [shared, shared]\n"
            "when = datetime.date(2026, 1, 2); counts = collections.Counter('aab')\n"
            "def double(x): return 2 * x\n"
            "class Point: pass\n"
            "point, short = Point(), lambda: 1\n"
        )
        blob = box.save()
    left_out = atoll.describe_state(blob).left_out
    assert set(left_out) == {"double", "Point", "point", "short"}
    assert "need cloudpickle, which the host does not have" in left_out["double"]
    with atoll.create_sandbox(backend="native", state=blob) as again:
        assert again.execute("twice[0] is twice[1], when.year, counts['a']").value == (
            True,
            2026,
            2,
        )
        assert again.execute("collections.Counter").success


def test_a_state_with_functions_needs_cloudpickle_and_the_error_says_what_to_type(monkeypatch):
    blob = save("def double(x): return 2 * x")
    monkeypatch.setattr(library, "_host_folder", lambda: None)
    with pytest.raises(atoll.StateError, match=r"'double': .*Type: .*pip install 'cloudpickle"):
        atoll.create_sandbox(backend="native", state=blob)


def test_odd_things_in_a_namespace_cost_nothing_else():
    blob = save(
        "import types, sys, json\n"
        "globals()[5] = 1; globals()[('a',)] = 2\n"
        "own = types.ModuleType('own'); own.v = 7\n"
        "nameless = types.ModuleType('x'); del nameless.__name__\n"
        "class Loud(Exception):\n def __str__(self): raise ValueError\n"
        "class Bad:\n def __reduce__(self): raise Loud\nbad = Bad()\n"
        "main = sys.modules['__main__']\nkept = 1"
    )
    names = atoll.describe_state(blob).left_out
    assert {"bad"} <= set(names) <= {"bad", "nameless"}
    with atoll.create_sandbox(backend="native", state=blob) as box:
        assert box.execute("kept, own.v, json.dumps(1), main.kept").value == (1, 7, "1", 1)


def test_a_variable_that_will_not_load_is_named():
    blob = save("kept = 1\nclass Late:\n def __reduce__(self): return int, ('x',)\nlate = Late()")
    with pytest.raises(atoll.StateError, match="could not restore: ValueError: variable 'late'"):
        atoll.create_sandbox(backend="native", state=blob)


def test_guest_code_that_closes_the_pipe_fails_only_that_save():
    with atoll.create_sandbox(backend="native", timeout_ms=5_000) as box:
        box.execute(
            "import os\nclass Closes:\n def __reduce__(self):\n"
            "  os.closerange(3, 64)\n  return int, ()\nc = Closes()"
        )
        with pytest.raises(atoll.StateError):
            box.save()
        assert box.execute("del c\n6 * 7").value == 42
        assert box.save()


def test_saving_and_restoring_leave_no_descriptor():
    with atoll.create_sandbox(backend="native", max_state_bytes=100_000, timeout_ms=3_000) as box:
        box.execute(
            "import os\nclass Bad:\n def __reduce__(self): return exec, ('1 / 0',)\nfull = False"
        )
        bad = save("class Bad:\n def __reduce__(self): return exec, ('1 / 0',)\nb = Bad()")
        good = box.save()
        gc.collect()
        here = len(os.listdir("/proc/self/fd"))
        there = box.execute("len(os.listdir('/proc/self/fd'))").value
        for _ in range(3):
            box.save()
            box.execute("big = bytes(200_000)")
            with pytest.raises(atoll.StateError, match="larger"):
                box.save()
            box.execute("del big")
            with pytest.raises(atoll.StateError):
                atoll.create_sandbox(backend="native", state=bad)
            atoll.create_sandbox(backend="native", state=good).destroy()
        assert box.execute("len(os.listdir('/proc/self/fd'))").value == there
        assert len(os.listdir("/proc/self/fd")) <= here


class Giver:
    """Stands in for a lease: keeps a copy of what it is to give."""

    given = -1

    def give(self, *fds: int) -> None:
        self.given = os.dup(fds[0])


async def test_a_pipe_is_closed_before_it_takes_more_than_its_cap():
    giver = Giver()
    with Inflow(giver, 100_000) as inflow:
        fd = giver.given
        os.set_blocking(fd, False)
        with pytest.raises(BrokenPipeError):
            while True:
                try:
                    os.write(fd, bytes(65536))
                except BlockingIOError:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0)
        os.close(fd)
        with pytest.raises(atoll.StateError, match="other bytes"):
            inflow.finish(65536 * 2)


async def test_a_guest_that_closes_its_end_ends_the_sending():
    giver = Giver()
    with Outflow(giver, memoryview(bytes(10 << 20))) as outflow:
        os.close(giver.given)
        for _ in range(20):
            await asyncio.sleep(0)
        assert outflow._fd == -1


def test_an_interrupted_import_of_cloudpickle_leaves_no_half_of_it(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "cloudpickle"]:
        monkeypatch.delitem(sys.modules, name)
    whole = tmp_path / "__init__.py"
    whole.write_text("raise KeyboardInterrupt\nPickler = 1")
    with pytest.raises(KeyboardInterrupt):
        load_cloudpickle(str(tmp_path))
    assert "cloudpickle" not in sys.modules
    whole.write_text("Pickler = 'the whole of it'")
    assert load_cloudpickle(str(tmp_path)).Pickler == "the whole of it"
    monkeypatch.delitem(sys.modules, "cloudpickle")


async def test_saving_can_be_cancelled_and_the_session_goes_on():
    async with atoll.aio.create_sandbox(backend="native") as box:
        await box.execute(
            "kept = 1\nclass Slow:\n def __reduce__(self):\n  while True: pass\ns = Slow()"
        )
        task = asyncio.ensure_future(box.save())
        await asyncio.sleep(0.5)
        await box.cancel()
        with pytest.raises(atoll.StateError, match="cancelled"):
            await task
        assert (await box.execute("kept")).value == 1

"""The store of saved states: bounded, shared, and never silently emptied."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sqlite3
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import atoll
from atoll import SqliteStateStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "states.db"


@pytest.fixture
def store(path):
    made = SqliteStateStore(path)
    yield made
    made.close()


def test_it_keeps_blobs_as_they_are(store, path):
    blob = bytes(range(256)) * 1000
    store.put("one", blob)
    store.put("two", b"")
    assert (store.get("one"), store.get("two"), store.get("three")) == (blob, b"", None)
    store.put("one", b"newer")
    assert store.get("one") == b"newer"
    assert (store.stats().count, store.stats().bytes) == (2, 5)
    store.delete("one")
    store.delete("one")
    assert store.get("one") is None
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_another_store_on_the_same_file_sees_them(store, path):
    store.put("one", b"blob")
    other = SqliteStateStore(path)
    assert other.get("one") == b"blob"
    other.close()


def test_old_ones_are_gone(path):
    now = 1_000_000.0
    store = SqliteStateStore(path, ttl_seconds=100, now=lambda: now)
    store.put("old", b"1")
    now += 60
    store.put("new", b"2")
    now += 60
    assert (store.get("old"), store.get("new"), store.stats().count) == (None, b"2", 1)
    assert (store.sweep(), store.sweep()) == (1, 0)
    store.close()


def test_the_oldest_make_room(path):
    store = SqliteStateStore(path, max_bytes=250)
    for name in "abc":
        store.put(name, bytes(100))
    assert [store.get(name) is not None for name in "abc"] == [False, True, True]
    with pytest.raises(atoll.StateError, match="the store holds 250"):
        store.put("d", bytes(251))
    assert store.stats().bytes == 200
    store.close()


def test_a_full_store_that_drops_nothing_refuses_and_keeps_what_it_has(path):
    store = SqliteStateStore(path, max_bytes=250, drop_oldest=False)
    store.put("a", bytes(100))
    store.put("b", bytes(100))
    with pytest.raises(atoll.StateError, match="the store is full: it holds 250 bytes"):
        store.put("c", bytes(100))
    with pytest.raises(atoll.StateError, match="the store is full"):
        store.put("a", bytes(151))
    assert store.sweep() == 0
    assert [len(store.get(name) or b"") for name in "abc"] == [100, 100, 0]
    store.put("a", bytes(150))
    store.close()


@pytest.mark.parametrize("options", [{"ttl_seconds": 0}, {"max_bytes": -1}])
def test_limits_have_to_be_limits(path, options):
    with pytest.raises(atoll.ConfigError):
        SqliteStateStore(path, **options)


@pytest.mark.parametrize("where", ["start", "middle"])
def test_a_damaged_file_is_set_aside_and_said(path, where):
    store = SqliteStateStore(path)
    for n in range(50):
        store.put(f"s{n}", os.urandom(5000))
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    content = bytearray(path.read_bytes())
    content[slice(0, 200) if where == "start" else slice(4096, len(content))] = os.urandom(
        200 if where == "start" else len(content) - 4096
    )
    path.write_bytes(content)
    with pytest.raises(atoll.StateError, match="damaged"):
        SqliteStateStore(path).get("s1")
    (aside,) = [one for one in path.parent.iterdir() if ".damaged-" in one.name]
    assert aside.read_bytes()[8192:] == bytes(content[8192:])
    fresh = SqliteStateStore(path)
    fresh.put("one", b"good")
    assert fresh.get("one") == b"good"
    fresh.close()


def test_a_full_disk_leaves_the_version_before(store, path):
    store.put("one", b"first")
    code = textwrap.dedent(f"""
        import resource, signal, atoll
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = atoll.SqliteStateStore({str(path)!r})
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, {resource.RLIM_INFINITY}))
        try:
            store.put("one", bytes(1_000_000))
        except atoll.StateError as exc:
            print("refused:", exc)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY}, {resource.RLIM_INFINITY}))
        print(store.get("one"))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "refused: the states in" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "b'first'"
    assert store.get("one") == b"first"


def test_a_place_that_is_none_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(atoll.StateError, match="cannot be used"):
        SqliteStateStore(tmp_path / "file" / "states.db")


def _hammer(path, number, failures):
    try:
        store = SqliteStateStore(path)
        for turn in range(20):
            store.put(f"{number}-{turn % 4}", bytes([number]) * 2000)
            store.put("shared", bytes([number]) * 2000)
            assert len(set(store.get("shared"))) == 1
            store.sweep()
        store.close()
    except Exception as exc:
        failures.put(repr(exc))


def test_several_processes_use_it_at_once(path):
    spawn = multiprocessing.get_context("spawn")
    failures = spawn.Queue()
    workers = [spawn.Process(target=_hammer, args=(path, n, failures)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures.empty(), failures.get()
    store = SqliteStateStore(path)
    assert store.stats().count == 17
    store.close()


def test_several_threads_use_one_store(store):
    faults = []

    def work(number):
        try:
            for turn in range(20):
                store.put(f"{number}", bytes([turn]) * 100)
                assert store.get(f"{number}") == bytes([turn]) * 100
        except Exception as exc:
            faults.append(exc)
        finally:
            store.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert store.stats().count == 4


def test_a_session_goes_through_it(store):
    with atoll.create_sandbox(backend="native") as box:
        box.execute("v = [1, 2]")
        store.put("mine", box.save())
    with atoll.create_sandbox(backend="native", state=store.get("mine")) as box:
        assert box.execute("v").value == [1, 2]


def test_closing_lets_go_in_every_thread(tmp_path):
    store = SqliteStateStore(tmp_path / "states")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: store.put(str(n), b"x"), range(8)))
        store.close_all()
        left = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in left if "states" in path]
    assert store.get("3") == b"x"  # it can be opened again
    store.close_all()

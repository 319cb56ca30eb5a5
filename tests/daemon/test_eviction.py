"""Idle sessions are put aside and come back as if nothing had happened; or end, and say so."""

from __future__ import annotations

import asyncio

import pytest
from daemon_kit import Notebook, open_notebook, open_plain, until
from memory_store import MemoryStateStore

import atoll
from atoll.backends.daemon import DaemonClientSandbox
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.sessions import open_storage


async def opened(**options):
    return await atoll.aio.create_sandbox(backend="daemon", **options)


async def test_an_idle_session_is_put_aside_and_comes_back(serve):
    daemon = await serve(open_notebook, idle_seconds=0.2)
    box = await opened(context="kept")
    await box.execute("x = [1, 2]")
    (first,) = Notebook.opened
    await until(lambda: first.destroyed)
    assert daemon.server.stats()["sessions"] == 1
    assert daemon.server.stats()["live"] == 0
    assert (await box.execute("x")).value == [1, 2]
    second = Notebook.opened[-1]
    assert second is not first
    assert second.config.context == "kept"
    await box.destroy()
    assert second.destroyed


async def test_network_limits_are_not_new_after_a_restore_or_in_a_fork(serve):
    await serve(open_notebook, idle_seconds=0.2)
    box = await opened(network=["a.test"])
    await box.execute("x = 1")
    first = Notebook.opened[0]
    first.config.network.spent.requests = 7
    twin = await box.fork()
    await until(lambda: first.destroyed)
    await until(lambda: Notebook.opened[1].destroyed)
    assert (await box.execute("x")).value == 1
    assert (await twin.execute("x")).value == 1
    counters = {id(one.config.network.spent) for one in Notebook.opened}
    assert counters == {id(first.config.network.spent)}
    assert Notebook.opened[-1].config.network.spent.requests == 7
    for one in (box, twin):
        await one.destroy()


async def test_too_many_in_memory_put_the_oldest_idle_aside(serve):
    daemon = await serve(open_notebook, max_live=2)
    boxes = []
    for number in range(4):
        boxes.append(await opened())
        await boxes[-1].execute(f"x = {number}")
    assert [one.destroyed for one in Notebook.opened] == [True, True, False, False]
    assert daemon.server.stats()["live"] == 2
    for number, box in enumerate(boxes):
        assert (await box.execute("x")).value == number
        await box.destroy()


async def test_too_much_memory_puts_the_oldest_idle_aside(serve):
    await serve(open_notebook, max_memory_bytes=1000, idle_seconds=1)
    one, two = await opened(), await opened()
    await one.execute("memory = 400")
    await two.execute("memory = 700")
    await until(lambda: Notebook.opened[0].destroyed)
    assert not Notebook.opened[1].destroyed
    assert (await one.execute("memory")).value == 400
    for box in (one, two):
        await box.destroy()


@pytest.mark.parametrize("why", ["marks", "left out", "unsavable", "busy"])
async def test_what_would_lose_something_is_not_put_aside(serve, monkeypatch, why):
    await serve(open_notebook, max_live=1)
    box = await opened()
    (held,) = Notebook.opened
    cell = None
    if why == "marks":
        await box.checkpoint()
    elif why == "left out":
        await box.execute('left_out = ["a name"]')
    elif why == "unsavable":
        held.capabilities = frozenset()
    else:
        cell = asyncio.create_task(box.execute("wait"))
        await asyncio.sleep(0.05)
    other = await opened()
    assert not held.destroyed
    if cell:
        await box.cancel()
        await cell
    await box.destroy()
    await other.destroy()


async def test_what_cannot_be_saved_ends_when_it_was_idle_for_too_long(serve):
    await serve(open_plain, idle_seconds=0.3)
    box = await opened()
    await box.execute("x = 1")
    await asyncio.sleep(1)
    with pytest.raises(
        atoll.SandboxLostError,
        match=r"it was idle for 0\.3 s and ended, as it could not be saved: .* Open a new",
    ):
        await box.execute("x")
    await box.destroy()


class Unsavable(Notebook):
    """A session that a variable named `refuses` keeps from being saved, for the reason in it."""

    async def save_whole(self):
        if why := self.names.get("refuses"):
            raise WHY_UNSAVED[why]
        return await super().save()


WHY_UNSAVED = {
    "too large": atoll.StateTooLargeError("the state is larger than 9 bytes", limit=9),
    "guest": atoll.StateError("the guest could not save: no"),
}


async def open_unsavable(config):
    return Unsavable(config)


@pytest.mark.parametrize("why", WHY_UNSAVED)
async def test_a_session_that_refuses_to_be_saved_ends_when_idle_and_says_why(serve, why):
    daemon = await serve(open_unsavable, idle_seconds=0.2)
    box = await opened()
    await box.execute(f'refuses = "{why}"')
    await until(lambda: Notebook.opened[0].destroyed)
    assert daemon.server.stats()["sessions"] == 0
    reason = f"as it could not be saved: {WHY_UNSAVED[why]}. Open a new one."
    with pytest.raises(atoll.SandboxLostError, match=reason):
        await box.execute("x")
    await box.destroy()


async def test_a_real_session_above_max_state_bytes_ends_when_idle(serve):
    daemon = await serve(idle_seconds=0.5)
    box = await opened(max_state_bytes=10_000)
    await box.execute("x = bytes(100_000)")
    await until(lambda: daemon.server.stats()["live"] == 0)
    with pytest.raises(atoll.SandboxLostError, match="larger than 10,000 bytes"):
        await box.execute("x")
    await box.destroy()


async def test_a_session_that_can_be_saved_again_is_saved(serve):
    await serve(open_unsavable, max_live=1)
    box = await opened()
    await box.execute('refuses = "too large"')
    other = await opened()
    assert not Notebook.opened[0].destroyed
    await box.execute("refuses = 0")
    await other.execute("y = 1")
    third = await opened()
    assert Notebook.opened[0].destroyed
    assert (await box.execute("refuses")).value == 0
    for each in (box, other, third):
        await each.destroy()


async def test_a_session_that_a_full_store_refuses_is_kept_no_longer_than_on_disk(serve):
    store = FullStore(60, 1 << 30)
    daemon = await serve(open_notebook, store=store, idle_seconds=0.1, keep_seconds=0.5)
    box = await opened()
    await until(lambda: daemon.server.stats()["sessions"] == 0)
    with pytest.raises(atoll.SandboxLostError, match="it was unused for"):
        await box.execute("x")
    await box.destroy()


class FullStore(MemoryStateStore):
    """A store that takes nothing, as on a full disk."""

    full = True

    def put(self, session_id, blob):
        if self.full:
            raise atoll.StateError("no space left on device")
        super().put(session_id, blob)


async def test_a_session_that_the_store_does_not_take_stays_and_harms_no_other(serve):
    store = FullStore(60, 1 << 30)
    await serve(open_notebook, store=store, idle_seconds=0.2)
    boxes = [await opened() for _ in range(3)]
    for number, box in enumerate(boxes):
        await box.execute(f"x = {number}")
    await asyncio.sleep(1)
    assert [one.destroyed for one in Notebook.opened] == [False] * 3
    store.full = False
    await until(lambda: all(one.destroyed for one in Notebook.opened))
    for number, box in enumerate(boxes):
        assert (await box.execute("x")).value == number
        await box.destroy()


async def test_use_keeps_a_session(serve):
    await serve(open_notebook, idle_seconds=1.5)
    box = await opened()
    for _ in range(10):
        await asyncio.sleep(0.2)
        await box.get_variable("x")
    assert len(Notebook.opened) == 1
    await box.destroy()


async def test_a_state_that_was_kept_for_too_long_is_lost(serve):
    store = MemoryStateStore(ttl_seconds=0.1, max_bytes=1 << 20)
    await serve(open_notebook, store, idle_seconds=0.1)
    box = await opened()
    await until(lambda: Notebook.opened[0].destroyed)
    await asyncio.sleep(0.3)
    with pytest.raises(atoll.SandboxLostError, match="kept for too long"):
        await box.execute("x")
    await box.destroy()


async def test_a_session_that_ends_takes_its_saved_state_with_it(serve):
    store = MemoryStateStore(ttl_seconds=60, max_bytes=1 << 20)
    await serve(open_notebook, store, idle_seconds=0.1)
    box = await opened()
    await until(lambda: Notebook.opened[0].destroyed)
    assert store._blobs
    await box.destroy()
    await until(lambda: not store._blobs)  # destroy() is answered before the end


async def test_a_full_store_puts_nothing_aside(serve):
    store = MemoryStateStore(ttl_seconds=60, max_bytes=1)
    await serve(open_notebook, store, max_live=1)
    one = await opened()
    two = await opened()
    assert not Notebook.opened[0].destroyed
    for box in (one, two):
        await box.destroy()


async def test_a_session_that_finds_no_room_on_disk_pushes_no_other_out(serve, tmp_path):
    _storage, store = open_storage(tmp_path / "states", DaemonLimits(store_bytes=1000))
    store.put("of another client", bytes(999))
    await serve(open_notebook, store, max_live=1)
    boxes = [await opened() for _ in range(2)]
    assert not Notebook.opened[0].destroyed
    assert store.get("of another client") == bytes(999)
    for box in boxes:
        await box.destroy()
    store.close_all()


def test_states_that_a_killed_daemon_left_take_no_room(tmp_path):
    limits = DaemonLimits(store_bytes=1500)
    _storage, left = open_storage(tmp_path / "states", limits)
    left.put("of no client", bytes(1000))
    _storage, store = open_storage(tmp_path / "states", limits)
    assert store.stats().count == 0
    store.put("new", bytes(1000))
    left.close_all()
    store.close_all()


async def test_a_kept_session_that_nobody_came_back_for_is_forgotten(serve):
    daemon = await serve(open_notebook, idle_seconds=0.1, keep_seconds=0.3)
    kept = DaemonClientSandbox(keep=True)
    await kept.initialize()
    await kept.detach()
    await until(lambda: daemon.server.stats()["sessions"] == 0)
    with pytest.raises(atoll.SandboxClosedError, match="no session has this token"):
        await DaemonClientSandbox(token=kept.token).initialize()


async def test_results_by_key_survive_being_put_aside(serve):
    await serve(open_notebook, idle_seconds=0.1)
    box = await opened()
    await box.execute("x = 1", key="k")
    await until(lambda: Notebook.opened[0].destroyed)
    await box.execute("y = 5")
    await box.execute("y = 6")
    await box.execute("x = 1", key="k")
    with pytest.raises(atoll.ConfigError, match="used with other code"):
        await box.execute("x = 2", key="k")
    assert await box.get_variable("x") == 1
    await box.destroy()


HOLDS = {
    "variables": ("x = [1]", "x == [1]"),
    "private names": ("_kept = 2; __secret = 3", "(_kept, __secret) == (2, 3)"),
    "the last value": ("40 + 2", "_ == 42"),
    "a private module": ("import math as _m", "_m.floor(2.5) == 2"),
    "environment": (
        "import os; os.environ['A'] = 'b'; del os.environ['HOME']",
        "os.environ['A'] == 'b' and 'HOME' not in os.environ",
    ),
    "files and folder": (
        "import os; os.mkdir('d'); open('d/f', 'w').write('t'); os.chdir('d')",
        "open('f').read() == 't'",
    ),
    "random": (
        "import random; random.seed(5); first = random.random()",
        "now = random.random()\n(random.seed(5), random.random(), random.random())[2] == now",
    ),
    "settings": (
        "import os, sys; sys.path.append('/app/lib'); sys.setrecursionlimit(2345); os.umask(7)",
        "import sys; sys.path[-1] == '/app/lib' and sys.getrecursionlimit() == 2345 == 2338 + os.umask(0)",
    ),
    "a changed context": ("context['a'].append(2)", "context == {'a': [1, 2]}"),
    "another context": ("context = 'mine'", "context == 'mine'"),
}
STAYS = {
    "a file elsewhere": "open('/tmp/note', 'w').write('x')",
    "a file at home": "open('/home/guest/note', 'w').write('x')",
    "a thread": "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
    "a process": "import subprocess; p = subprocess.Popen(['sleep', '60']); del p",
    "an open file": "file = open('x', 'w')",
    "a generator": "_g = (n for n in range(9)); next(_g)",
    "a task": "import asyncio\nasyncio.ensure_future(asyncio.sleep(60))\nawait asyncio.sleep(0)",
    "a handler": "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None); del signal",
    "a module": "open('own.py', 'w').write('n = 1')\nimport own\nown.n = 2",
}


@pytest.mark.parametrize(("code", "check"), HOLDS.values(), ids=HOLDS)
async def test_all_of_a_session_that_is_put_aside_comes_back(serve, code, check):
    daemon = await serve(max_live=1, store=None)
    async with await opened(context={"a": [1]}) as box:
        assert (await box.execute(code)).success
        async with await opened():
            assert daemon.server.stats()["live"] == 1
        result = await box.execute(f"import os\n{check}")
        assert (result.value, result.state_lost) == (True, False), result


@pytest.mark.parametrize("code", STAYS.values(), ids=STAYS)
async def test_a_session_that_would_lose_something_stays_in_memory(serve, code):
    daemon = await serve(max_live=1)
    async with await opened() as box:
        assert (await box.execute(f"x = 1\n{code}")).success
        async with await opened():
            assert daemon.server.stats()["live"] == 2
        assert (await box.execute("x")).value == 1


async def test_a_guest_that_claims_petabytes_moves_no_session(serve):
    daemon = await serve(max_memory_bytes=2 << 30, idle_seconds=0.2 * 3600)
    claim = (
        "import resource, sys\n"
        "class Lie: ru_maxrss = 10**15\n"
        "resource.getrusage = lambda who: Lie\n"
        "frame = sys._getframe()\n"
        "while not hasattr(frame.f_locals.get('self'), '_methods'): frame = frame.f_back\n"
        "methods = frame.f_locals['self']._methods\n"
        "honest = methods['execute']\n"
        "methods['execute'] = lambda p: dict(honest(p), memory_bytes=10**15)"
    )
    async with await opened() as idle, await opened() as liar:
        await idle.execute("x = 1")
        await liar.execute(claim)
        assert (await liar.execute("1")).memory_used_bytes < 1 << 30
        async with await opened():
            assert daemon.server.stats()["live"] == 3


async def test_a_daemon_that_stops_waits_for_a_session_that_is_being_ended(serve):
    ended = asyncio.Event()

    class Slow(Notebook):
        async def destroy(self):
            await super().destroy()
            await asyncio.sleep(0.2)
            ended.set()

    async def open_slow(config):
        return Slow(config)

    daemon = await serve(open_slow, idle_seconds=0.2)
    ended.clear()
    box = await opened()
    await until(lambda: Notebook.opened[0].destroyed)
    await daemon.server.stop()
    assert ended.is_set()
    await box.destroy()

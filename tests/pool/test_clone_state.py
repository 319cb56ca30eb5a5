"""Live clones: what is in a session is in its clone, and from there each goes its own way."""

from __future__ import annotations

import asyncio
import sys

import pytest
from poolkit import said, until

from atoll.errors import ConfigError, SandboxClosedError, SandboxLostError, UnsupportedError
from atoll.hosting.pool import PooledSandbox
from atoll.policy import Capability, Mount
from atoll.types import Outcome

ALIVE = """
import sqlite3, threading, time
squares = (n * n for n in range(10)); next(squares); next(squares)
double = lambda n: n * factor
factor = 2
database = sqlite3.connect(':memory:')
database.execute('create table t (a)'); database.execute('insert into t values (7)')
class Point:
    def __init__(self): self.x = 1
point = Point()
counts = []
def tick():
    while True:
        counts.append(1)
        time.sleep(0.01)
thread = threading.Thread(target=tick, daemon=True); thread.start()
"""


async def test_what_cannot_be_saved_lives_on_in_a_clone(family):
    box = await family.open()
    await said(box, ALIVE)
    clone = await family.fork(box)
    look = (
        "print(next(squares), double(21), database.execute('select a from t').fetchall(), point.x)"
    )
    assert await said(clone, look) == "4 42 [(7,)] 1"
    await said(clone, "factor = 3; database.execute('delete from t'); point.x = 2")
    assert await said(clone, look) == "9 63 [] 2"
    assert await said(box, look) == "4 42 [(7,)] 1"


async def test_numpy_arrays_are_apart(family):
    pytest.importorskip("numpy")
    box = await family.open(preload="numeric")
    await said(box, "a = np.arange(1_000_000); frame = pd.DataFrame({'a': a})")
    clone = await family.fork(box)
    await said(clone, "a[:] = 0; frame['b'] = 1")
    assert await said(clone, "print(a.sum(), list(frame))") == "0 ['a', 'b']"
    assert await said(box, "print(a.sum(), list(frame))") == "499999500000 ['a']"


async def test_threads_stay_with_the_first(family):
    box = await family.open()
    await said(box, ALIVE)
    clone = await family.fork(box)
    grew = "n = len(counts); time.sleep(0.3); print(len(counts) > n, thread.is_alive())"
    assert await said(box, grew) == "True True"
    assert await said(clone, grew) == "False False"
    assert (
        await said(clone, "t = threading.Thread(target=lambda: print('runs')); t.start(); t.join()")
        == "runs"
    )


async def test_the_current_folder_is_kept(family):
    box = await family.open()
    await said(box, "import os; os.makedirs('a/b'); os.chdir('a/b')")
    clone = await family.fork(box)
    assert await said(clone, "print(os.getcwd()); open('x', 'w').close()") == "/app/a/b"
    assert await said(box, "print(os.getcwd(), os.listdir())") == "/app/a/b []"
    await said(box, "os.rmdir('/app/a/b')")
    assert await said(await family.fork(box), "print(os.getcwd())") == "/app"


async def test_a_clone_of_a_clone(family):
    boxes = [await family.open()]
    await said(boxes[0], "x = 0")
    for number in range(1, 6):
        boxes.append(await family.fork(boxes[-1]))
        await said(boxes[-1], f"x = x * 10 + {number}")
    assert [await said(box, "print(x)") for box in boxes] == [
        "0",
        "1",
        "12",
        "123",
        "1234",
        "12345",
    ]


async def test_rolling_back_brings_everything_back(family):
    box = await family.open()
    await said(box, "x = 1; open('kept', 'w').write('one')")
    mark = await box.checkpoint()
    for _ in range(2):
        await said(box, "x += 1; open('kept', 'a').write('!'); open('new', 'w').close()")
        await box.rollback(mark)
        assert (
            await said(box, "import os; print(x, open('kept').read(), os.listdir())")
            == "1 one ['kept']"
        )
    assert await box.branches() == (mark,)


async def test_rolling_back_brings_a_lost_session_back(family):
    box = await family.open()
    await said(box, "x = 1")
    mark = await box.checkpoint()
    assert (await box.execute("import os; os._exit(1)")).state_lost
    await box.rollback(mark)
    result = await box.execute("print(x)")
    assert (result.stdout, result.state_lost) == ("1\n", False)


async def test_checkpoints_of_checkpoints(family):
    box = await family.open()
    marks = []
    for number in range(30):
        await said(box, f"x = {number}")
        marks.append(await box.checkpoint())
    assert await box.branches() == tuple(marks)
    for number in (29, 0, 15, 7):
        await box.rollback(marks[number])
        assert await said(box, "print(x)") == str(number)


async def test_an_unknown_mark_is_told(family):
    box = await family.open()
    with pytest.raises(ConfigError, match="no checkpoint 'nothing': none is kept"):
        await box.rollback("nothing")
    mark = await box.checkpoint()
    with pytest.raises(ConfigError, match=f"no checkpoint 'nothing': use one of {mark}"):
        await box.rollback("nothing")


async def test_checkpoints_have_an_end(family, monkeypatch):
    monkeypatch.setattr("atoll.hosting.pool.sandbox.MAX_CHECKPOINTS", 2)
    box = await family.open()
    await box.checkpoint()
    await box.checkpoint()
    with pytest.raises(ConfigError, match="none is free"):
        await box.checkpoint()


async def test_a_fork_waits_for_the_running_cell(family):
    box = await family.open()
    cell = asyncio.ensure_future(box.execute("import time; time.sleep(0.5); x = 5"))
    await asyncio.sleep(0.1)
    clone = await family.fork(box)
    assert cell.done()
    assert await said(clone, "print(x)") == "5"


async def test_many_forks_at_once_take_turns(family):
    box = await family.open()
    await said(box, "x = 9")
    clones = await asyncio.gather(*(family.fork(box) for _ in range(5)))
    assert await asyncio.gather(*(said(one, "print(x)") for one in clones)) == ["9"] * 5


async def test_two_families_fork_at_once(family):
    boxes = [await family.open() for _ in range(4)]
    for number, box in enumerate(boxes):
        await said(box, f"x = {number}")
    clones = await asyncio.gather(*(family.fork(box) for box in boxes))
    assert [await said(one, "print(x)") for one in clones] == ["0", "1", "2", "3"]


async def test_a_session_with_something_of_the_hosts_is_not_cloned(family, tmp_path):
    mount = Mount(source=tmp_path, target="/data")
    for options in ({"workspace": tmp_path}, {"mounts": (mount,)}):
        box = await family.open(**options)
        for call in (box.fork, box.checkpoint):
            with pytest.raises(UnsupportedError, match="started cold: the sandbox has "):
                await call()
        assert await said(box, "print('goes on')") == "goes on"


async def test_a_closed_session_is_not_cloned(family):
    box = await family.open()
    await box.destroy()
    with pytest.raises(SandboxClosedError):
        await box.fork()


async def test_the_context_stays_shared(family):
    text = "c" * 3_000_000
    box = await family.open(context=text)
    clone = await family.fork(box)
    assert clone.context_is_shared == box.context_is_shared
    await box.destroy()
    assert await said(clone, "print(len(context), context[-1])") == "3000000 c"
    grandchild = await family.fork(clone)
    assert await said(grandchild, "print(len(context))") == "3000000"


async def test_tools_and_queries_work_in_both_at_once(family):
    async def answer(prompt, *_args, **_options):
        await asyncio.sleep(0.2)
        return f"to {prompt}"

    box = await family.open(tools={"tool": answer}, on_llm_query=answer)
    clone = await family.fork(box)
    calls = [
        said(one, f"print(tool('{name}'), llm_query('{name}'))")
        for one, name in ((box, "first"), (clone, "second"))
    ]
    assert await asyncio.gather(*calls) == ["to first to first", "to second to second"]


async def test_output_goes_to_whom_it_belongs(family):
    box = await family.open()
    await said(box, "import sys; out = sys.stdout; write = print")
    clone = await family.fork(box)
    first, second = await asyncio.gather(
        said(box, "for i in range(100): write('first')"),
        said(clone, "for i in range(100): write('second')"),
    )
    assert set(first.split()) == {"first"}
    assert set(second.split()) == {"second"}


@pytest.mark.spec("R2.11")
async def test_cancel_and_timeout_touch_only_their_own(family):
    box = await family.open()
    clone = await family.fork(box)
    long = asyncio.ensure_future(clone.execute("import time; time.sleep(1.5); print('through')"))
    await asyncio.sleep(0.1)
    assert (await box.execute("while True: pass", timeout_ms=200)).kind is Outcome.TIMEOUT
    cell = asyncio.ensure_future(box.execute("while True: pass"))
    await asyncio.sleep(0.1)
    await box.cancel()
    assert (await cell).kind is Outcome.CANCELLED
    killed = await box.execute("sum(iter(int, 1))", timeout_ms=500)
    assert killed.state_lost
    assert (await long).stdout == "through\n"


async def test_a_key_is_run_once_and_a_clone_has_keys_of_its_own(family):
    box = await family.open()
    await said(box, "n = 0")
    for _ in range(2):
        assert await said(box, "n += 1; print(n)", key="once") == "1"
    first, second = await asyncio.gather(
        *(box.execute("n += 1; print(n)", key="two") for _ in range(2))
    )
    assert first.stdout == second.stdout == "2\n"
    clone = await family.fork(box)
    assert await said(clone, "n += 1; print(n)", key="once") == "3"


async def test_a_mark_that_was_killed_is_told(family):
    box = await family.open()
    mark = await box.checkpoint()
    box._marks[mark].lease.kill()
    await until(lambda: box._marks[mark].session.dead)
    with pytest.raises(SandboxLostError, match="ended from outside"):
        await box.rollback(mark)
    assert await said(box, "print('goes on')") == "goes on"


async def test_chance_after_a_fork(family):
    box = await family.open()
    await said(box, "import random, tempfile, uuid, os")
    clone = await family.fork(box)
    draw = "print(random.random(), tempfile.mktemp(), uuid.uuid4())"
    first, second = [(await said(one, draw)).split() for one in (box, clone)]
    assert first[0] == second[0]  # the session's own numbers go on in both
    assert not set(first[1:]) & set(second[1:])


async def test_a_clone_saves_its_state(family):
    box = await family.open()
    await said(box, "x = 1")
    clone = await family.fork(box)
    await said(clone, "x = 2")
    restored = await family.open(state=await clone.save())
    assert await said(restored, "print(x)") == "2"
    mine = await family.open(state=await box.save())
    assert await said(mine, "print(x)") == "1"


def test_forking_is_a_declared_power():
    assert Capability.FORK in PooledSandbox.capabilities


async def test_low_descriptors_are_the_guests_to_close(family):
    box = await family.open()
    clone = await family.fork(box)
    for one in (box, clone):
        await said(one, "import os; os.closerange(3, 256)")
        assert await said(one, "print('here')") == "here"


async def test_deep_recursion_does_not_spoil_a_clone(family):
    box = await family.open()
    clone = await family.fork(box)
    result = await clone.execute("def f(): f()\nf()")
    assert result.error_type == "RecursionError"
    assert await said(clone, "print(1)") == "1"


async def test_another_interpreter_is_not_cloned(family):
    other = "/usr/bin/python3"
    if sys.executable == other:
        pytest.skip("there is no other interpreter")
    box = await family.open(python=other)
    with pytest.raises(UnsupportedError):
        await box.fork()

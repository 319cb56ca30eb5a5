"""`random` and numpy's generator: a live clone goes on with their numbers, a fresh guest has others."""

from __future__ import annotations

import pytest

from atoll.policy import Capability

DRAW = "(random.random(), random.gauss(0, 1), random.choice(range(10**9)))"


@pytest.mark.needs(Capability.FORK)
def test_a_twin_and_its_origin_draw_the_same_numbers_until_one_draws_more(box):
    box.execute("import random\nrandom.gauss(0, 1)")  # gauss makes two numbers and keeps the second
    twin = box.fork()
    try:
        assert box.execute(DRAW).value == twin.execute(DRAW).value
        twin.execute("random.random()")
        assert box.execute(DRAW).value != twin.execute(DRAW).value
    finally:
        twin.destroy()


@pytest.mark.needs(Capability.FORK)
def test_a_session_with_threads_that_makes_warnings_errors_is_forked(box):
    """From Python 3.15 on, os.fork() would raise its warning when the child is there already."""
    box.execute(
        "import threading, warnings\nwarnings.simplefilter('error')\nhold = threading.Event()\n"
        "threading.Thread(target=hold.wait, daemon=True).start()\nx = 1"
    )
    twin = box.fork()
    try:
        assert twin.execute("x + 1").value == 2
    finally:
        twin.destroy()
    code = "try: warnings.warn('still one')\nexcept UserWarning: x = 3\nx"
    assert box.execute(code).value == 3
    box.execute("hold.set()")


@pytest.mark.needs(Capability.FORK)
def test_after_a_rollback_the_numbers_after_the_checkpoint_come_again(box):
    box.execute("import random")
    mark = box.checkpoint()
    after = box.execute(DRAW).value
    for _ in range(2):
        box.rollback(mark)
        assert box.execute(DRAW).value == after


@pytest.mark.needs(Capability.FORK)
def test_numpys_generator_is_kept_too(box):
    pytest.importorskip("numpy")
    box.execute("import numpy as np")
    mark, draw = box.checkpoint(), "float(np.random.rand())"
    after = box.execute(draw).value
    box.rollback(mark)
    assert box.execute(draw).value == after


@pytest.mark.needs(Capability.FORK)
@pytest.mark.parametrize("broken", ["del random.getstate", "random.setstate = lambda s: 1 / 0"])
def test_a_session_that_broke_the_module_is_cloned_all_the_same(box, broken):
    assert box.execute(f"import random\n{broken}\nkept = 7").success
    twin = box.fork()
    try:
        assert twin.execute("random.random(); kept").value == 7
    finally:
        twin.destroy()


def test_fresh_guests_draw_different_numbers(open_box):
    draws = [open_box().execute(f"import random\n{DRAW}").value for _ in range(3)]
    assert len(set(draws)) == 3


@pytest.mark.needs(Capability.FORK)
def test_a_child_of_the_guests_own_draws_other_numbers(box):
    result = box.execute(
        "import os, random\nread, write = os.pipe()\n"
        "if os.fork() == 0:\n    os.write(write, repr(random.random()).encode()); os._exit(0)\n"
        "os.wait()\nos.read(read, 99).decode() != repr(random.random())"
    )
    assert result.value is True

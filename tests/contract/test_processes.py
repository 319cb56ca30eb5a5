"""Processes and threads that cells start: what they find of the session, and what they do not."""

from __future__ import annotations

import pytest

from atoll import Capability
from atoll.guest.core.explain import NOT_SENT

pytestmark = pytest.mark.needs(Capability.SUBPROCESS)

POOL = """
import multiprocessing
_factor = 3
class Point:
    def __init__(self, x): self.x = x
def times(x): return x * _factor
def moved(point): return Point(point.x + 1)
with multiprocessing.get_context({method!r}).Pool(1) as pool:
    found = pool.map(times, [1, 2]), [type(p) is Point and p.x for p in pool.map(moved, [Point(1)])]
found
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes_runs_functions_of_a_cell(box, method):
    result = box.execute(POOL.format(method=method))
    assert result.value == ([3, 6], [2]), result.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_find_what_later_cells_define(box, method):
    """A fork server that an earlier cell has started knows nothing of it."""
    box.execute(POOL.format(method=method))
    code = (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "def cube(x): return x ** 3 * _factor\n"
        f"context = multiprocessing.get_context({method!r})\n"
        "_factor = 2\n"
        "with ProcessPoolExecutor(2, mp_context=context) as pool: cubes = list(pool.map(cube, [1, 2]))\n"
        "cubes"
    )
    result = box.execute(code)
    assert result.value == [2, 16], result.stderr
    box.execute("_factor = 5")
    assert box.execute(code.replace("_factor = 2", "pass")).value == [5, 40]


@pytest.mark.parametrize("how", ["multiprocessing.Pool(2)", "ProcessPoolExecutor(2)"])
def test_processes_by_the_default_method_run_functions_of_a_cell(box, how):
    code = (
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\n"
        f"def double(x): return 2 * x\nwith {how} as pool: doubled = list(pool.map(double, [1, 2]))\n"
        "doubled"
    )
    result = box.execute(code)
    assert result.value == [2, 4], result.stderr


def test_what_cannot_be_sent_to_a_new_process_says_so(box):
    code = (
        "import multiprocessing\nsecrets = (n for n in [1])\ndef use(_): return next(secrets)\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool: pool.map(use, [0])"
    )
    result = box.execute(code)
    assert result.error == f"NameError: name 'secrets' is not defined: {NOT_SENT}"


CANNOT_CALL = (
    "HostCallError: a child process cannot call the host: call it from threads, or many at once "
    "with batch_llm_query"
)


@pytest.mark.parametrize("function", ["llm_query", "look_up"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_call_to_the_host_from_a_child_process_says_what_to_do(open_box, method, function):
    box = open_box(on_llm_query=lambda prompt: prompt, tools={"look_up": lambda key: key})
    code = (
        f"import multiprocessing\ndef ask(p): return {function}(p)\n"
        f"with multiprocessing.get_context({method!r}).Pool(1) as pool: pool.map(ask, ['?'])"
    )
    result = box.execute(code)
    assert result.error == CANNOT_CALL
    assert box.execute(f"{function}('again')").value == "again"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_llm_query_can_be_sent_to_a_child_process_and_says_what_to_do(open_box, method):
    box = open_box(on_llm_query=lambda prompt: prompt)
    code = (
        "import multiprocessing\n"
        f"with multiprocessing.get_context({method!r}).Pool(1) as pool: pool.map(llm_query, ['?'])"
    )
    assert box.execute(code).error == CANNOT_CALL
    assert box.execute("import copy\ncopy.deepcopy(llm_query)('again')").value == "again"


def test_a_call_to_the_host_from_a_child_of_joblib_says_what_to_do(open_box):
    box = open_box(on_llm_query=lambda prompt: prompt)
    if not box.execute("import joblib").success:
        pytest.skip("this backend has no joblib")
    code = (
        "def ask(p):\n    try: return llm_query(p)\n    except HostCallError as exc: return str(exc)\n"
        "joblib.Parallel(n_jobs=2)(joblib.delayed(ask)(n) for n in 'ab')"
    )
    result = box.execute(code)
    assert result.value == [CANNOT_CALL.partition(": ")[2]] * 2, result.error


def test_a_large_pool_of_threads_starts(open_box):
    box = open_box(on_llm_query=lambda prompt: prompt)
    code = (
        "from concurrent.futures import ThreadPoolExecutor\nimport threading\n"
        "together = threading.Barrier(100)\n"
        "with ThreadPoolExecutor(100) as pool:\n"
        "    answers = set(pool.map(lambda n: (together.wait(), llm_query(str(n)))[1], range(100)))\n"
        "len(answers)"
    )
    result = box.execute(code)
    assert result.value == 100, result.error


def test_asyncio_run_cancels_its_main_task_when_it_is_interrupted(box):
    code = (
        "import asyncio, os, signal\n"
        "async def main():\n"
        "    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)\n"
        "    try: await asyncio.sleep(60)\n"
        "    except asyncio.CancelledError: print('cancelled'); raise\n"
        "    finally: await asyncio.sleep(0); print('cleaned up')\n"
        "asyncio.run(main())"
    )
    result = box.execute(code)
    assert (result.error_type, result.stdout) == ("KeyboardInterrupt", "cancelled\ncleaned up\n")
    assert box.execute("asyncio.run(asyncio.sleep(0, 'again'))").value == "again"


@pytest.mark.parametrize("busy", ["while True: pass", "time.sleep(60)"])
def test_asyncio_run_is_interrupted_where_its_loop_does_not_turn(box, busy):
    code = (
        "import asyncio, os, signal, time\n"
        "async def never_awaits():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        f"    {busy}\n"
        "async def main(): await asyncio.gather(never_awaits(), asyncio.sleep(60))\n"
        "asyncio.run(main())"
    )
    result = box.execute(code, timeout_ms=20_000)
    assert (result.kind, result.error_type) == ("error", "KeyboardInterrupt"), result
    assert box.execute("asyncio.run(asyncio.sleep(0, 'again'))").value == "again"


@pytest.mark.needs(Capability.LIMIT_TIME)
def test_a_timeout_of_asyncio_run_keeps_the_state(box):
    box.execute("import asyncio\nx = 'kept'")
    code = (
        "async def main():\n"
        "    try: await asyncio.sleep(60)\n"
        "    finally: print('cleaned up')\n"
        "asyncio.run(main())"
    )
    result = box.execute(code, timeout_ms=500)
    assert (result.kind, result.stdout, result.state_lost) == ("timeout", "cleaned up\n", False)
    assert box.execute("x").value == "kept"

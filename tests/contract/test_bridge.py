"""Calls from the guest to the host: llm_query, rlm_query, batches, tools."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from atoll import Capability

pytestmark = pytest.mark.needs(Capability.BRIDGE)


@pytest.mark.spec("R0.8")
def test_llm_query_returns_the_hosts_answer(open_box):
    box = open_box(on_llm_query=lambda prompt: f"answer to {prompt!r}")
    assert box.execute("llm_query('why?')").value == "answer to 'why?'"


@pytest.mark.spec("R0.8")
def test_an_async_handler_works_too(open_box):
    async def answer(prompt):
        await asyncio.sleep(0)
        return prompt.upper()

    assert open_box(on_llm_query=answer).execute("llm_query('loud')").value == "LOUD"


@pytest.mark.spec("R0.8")
def test_a_failing_handler_is_an_exception_in_the_guest(open_box):
    def fail(prompt):
        raise RuntimeError("model is down")

    box = open_box(on_llm_query=fail)
    result = box.execute("try:\n  llm_query('x')\nexcept HostCallError as exc:\n  print(exc)")
    assert result.stdout == "llm_query: RuntimeError: model is down\n"
    assert box.execute("1").value == 1


@pytest.mark.spec("R0.8")
def test_without_a_handler_the_guest_is_told_what_to_do(box):
    result = box.execute("llm_query('x')")
    assert "give create_sandbox an on_llm_query handler" in result.error


@pytest.mark.spec("R0.8")
def test_a_prompt_that_is_no_text_is_refused(open_box):
    box = open_box(on_llm_query=lambda prompt: prompt)
    assert box.execute("llm_query(5)").error == "TypeError: prompt must be a str, not int"


@pytest.mark.spec("R0.9")
def test_rlm_query_without_ctx_gets_the_current_context(open_box):
    calls = []
    box = open_box(
        context="the context", on_rlm_query=lambda task, ctx: calls.append((task, ctx)) or "done"
    )
    box.execute("rlm_query('all'); rlm_query('part', context[:3])")
    box.execute("context = {'new': 1}\nrlm_query('changed')")
    assert calls == [("all", "the context"), ("part", "the"), ("changed", {"new": 1})]


@pytest.mark.spec("R0.9")
def test_rlm_query_hands_a_shared_context_over_without_sending_it(open_box):
    text, calls = "large " * 10_000_000, []
    box = open_box(context=text, on_rlm_query=lambda task, ctx: calls.append(ctx) or "done")
    assert box.execute("rlm_query('all')").value == "done"
    assert calls[0] is text


@pytest.mark.spec("R0.8")
def test_a_batch_runs_in_parallel_and_keeps_the_order(open_box):
    together = threading.Barrier(8, timeout=10)

    def answer(prompt):
        together.wait()
        return f"<{prompt}>"

    box = open_box(on_llm_query=answer)
    assert box.execute("batch_llm_query([str(n) for n in range(8)])").value == [
        f"<{n}>" for n in range(8)
    ]


@pytest.mark.spec("R0.8")
def test_one_failure_in_a_batch_stays_in_its_place(open_box):
    def answer(prompt):
        if prompt == "b":
            raise ValueError("no b")
        return prompt.upper()

    box = open_box(on_llm_query=answer)
    result = box.execute(
        "r = batch_llm_query(['a', 'b', 'c'])\n[str(x) for x in r], [hasattr(x, 'failed') for x in r]"
    )
    texts, failed = result.value
    assert texts == ["A", "[llm_query failed: llm_query: ValueError: no b]", "C"]
    assert failed == [False, True, False]


@pytest.mark.spec("R0.9")
def test_batch_rlm_query_takes_tasks_with_and_without_context(open_box):
    box = open_box(context="ctx", on_rlm_query=lambda task, ctx: f"{task}:{ctx}")
    code = "batch_rlm_query(['one', {'task': 'two'}, {'task': 'three', 'context': [3]}])"
    assert box.execute(code).value == ["one:ctx", "two:ctx", "three:[3]"]


@pytest.mark.spec("R0.8")
def test_tools_are_functions_of_the_guest(open_box):
    def add(a, b=0, *, scale=1):
        return {"sum": (a + b) * scale, "type": type(a).__name__}

    box = open_box(tools={"add": add})
    assert box.execute("add(2, b=3, scale=2)").value == {"sum": 10, "type": "int"}
    assert box.execute("call_host('add', (1,), (2,))").value == {"sum": (1, 2), "type": "tuple"}
    assert "no tool 'nothing'; there are: add" in box.execute("call_host('nothing')").error


@pytest.mark.spec("R0.8")
@pytest.mark.needs(Capability.THREADS)
def test_calls_from_several_threads_overlap_on_the_host(open_box):
    together = threading.Barrier(4, timeout=10)

    def answer(prompt):
        together.wait()
        return prompt * 2

    box = open_box(on_llm_query=answer)
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: r = list(pool.map(llm_query, 'abcd'))\nr"
    )
    assert box.execute(code).value == ["aa", "bb", "cc", "dd"]


@pytest.mark.spec("R0.8")
def test_a_huge_prompt_is_refused_in_the_guest_and_the_session_lives(open_box):
    box = open_box(on_llm_query=len)
    assert "bytes" in box.execute("llm_query('x' * 40_000_000)").error
    assert box.execute("llm_query('x' * 1_000_000)").value == 1_000_000


@pytest.mark.spec("R0.8")
@pytest.mark.needs(Capability.SUBPROCESS)
def test_a_forked_child_neither_answers_nor_asks_for_its_parent(open_box):
    box = open_box(on_llm_query=lambda prompt: prompt)
    result = box.execute(
        "import os, time\npid = os.fork()\n"
        "if pid == 0:\n"
        "    try: llm_query('child')\n"
        "    except Exception as exc: print(type(exc).__name__, flush=True); os._exit(0)\n"
        "os.waitpid(pid, 0)\nllm_query('parent')"
    )
    assert result.value == "parent"
    assert result.stdout == "HostCallError\n"


def test_many_calls_in_a_row_stay_in_step(open_box):
    box = open_box(on_llm_query=lambda prompt: prompt)
    started = time.monotonic()
    assert box.execute(
        "[llm_query(str(n)) for n in range(500)] == [str(n) for n in range(500)]"
    ).value
    assert time.monotonic() - started < 60


def test_handlers_that_hang_block_no_later_call(open_box):
    """As many as may run at once hang when their cells are over: they no longer count."""
    let_go = threading.Event()
    tools = {"hang": let_go.wait, "double": lambda n: 2 * n}
    box = open_box(tools=tools, max_concurrency=2)
    try:
        for _ in range(3):
            assert box.execute("hang()", timeout_ms=150).kind == "timeout"
        assert box.execute("double(21)", timeout_ms=5000).value == 42
    finally:
        let_go.set()


@pytest.mark.needs(Capability.IMPORTS)
def test_errors_of_calls_and_failed_queries_can_be_pickled(open_box):
    def refuse(prompt):
        raise LookupError(prompt)

    box = open_box(on_llm_query=refuse)
    code = (
        "import pickle\n"
        "try: call_host('nothing')\nexcept HostCallError as exc: error = exc\n"
        "(query,) = batch_llm_query(['?'])\n"
        "again, queried = pickle.loads(pickle.dumps((error, query)))\n"
        "type(again) is HostCallError, again.args == error.args, queried.failed, queried == query"
    )
    assert box.execute(code).value == (True, True, True, True)
    assert box.execute("call_host('nothing')").error_type == "HostCallError"

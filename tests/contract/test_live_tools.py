"""Tools that are added to and removed from a live session, and the context of whoever runs code."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

import atoll
from atoll import Capability, ConfigError

pytestmark = pytest.mark.needs(Capability.BRIDGE)
USER = contextvars.ContextVar("user", default="nobody")


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def test_a_tool_is_added_replaced_and_removed_while_variables_live_on(box):
    box.execute("kept = 20")
    box.add_tool(double)
    assert box.execute("double(kept) + 2").value == 42
    assert box.execute("double.__doc__").value == "Double a number."
    box.add_tool(lambda number: number, name="double")
    assert box.execute("double(kept)").value == 20
    assert set(box.tools) == {"double"}
    box.remove_tool("double")
    assert box.execute("double(kept)").error_type == "NameError"
    assert box.execute("call_host('double', 1)").kind is atoll.Outcome.ERROR
    assert box.execute("kept").value == 20
    assert dict(box.tools) == {}


def test_a_helper_that_a_tool_stood_before_is_there_again(open_box):
    box = open_box(context="abc", tools={"chunk_text": lambda *_: "tool"})
    assert box.execute("chunk_text('abc')").value == "tool"
    box.remove_tool("chunk_text")
    assert box.execute("chunk_text('abc', 3)").value == ["abc"]


def test_what_is_no_tool_is_refused_and_changes_nothing(box):
    box.set_tools({"double": double})
    with pytest.raises(ConfigError, match="no tool 'triple' to remove; there are: double"):
        box.remove_tool("triple")
    with pytest.raises(ConfigError, match="a tool cannot be called 'print'"):
        box.add_tool(double, name="print")
    assert box.execute("double(4)").value == 8


def test_a_guest_that_was_lost_is_followed_by_one_with_the_same_tools(box):
    box.add_tool(double)
    lost = box.execute("while True: pass", timeout_ms=300)
    if not lost.state_lost:
        box.initialize()
    assert box.execute("double(2)").value == 4


@pytest.mark.needs(Capability.FORK)
def test_clones_have_the_tools_of_now_and_a_checkpoint_gets_them(box):
    box.add_tool(double, name="before")
    mark = box.checkpoint()
    box.add_tool(double, name="after")
    box.remove_tool("before")
    twin = box.fork()
    assert twin.execute("after(1)").value == 2
    twin.destroy()
    box.rollback(mark)
    assert box.execute("after(2)").value == 4
    assert box.execute("before(2)").error_type == "NameError"


async def _asked(_question=None):
    await asyncio.sleep(0)
    return USER.get()


@pytest.mark.parametrize("handler", [lambda _question=None: USER.get(), _asked])
async def test_handlers_see_the_context_variables_of_whoever_runs_the_code(backend, handler):
    options = {"tools": {"who": handler}, "on_llm_query": handler}
    async with atoll.aio.create_sandbox(backend=backend, **options) as box:

        async def run_as(name: str) -> list[str]:
            USER.set(name)
            return (await box.execute("[who(), llm_query('?')]")).value

        names = ["ann", "bob", "eve"]
        found = await asyncio.gather(*(asyncio.create_task(run_as(name)) for name in names))
        assert found == [[name, name] for name in names]
    assert USER.get() == "nobody"


def test_a_blocking_caller_is_seen_too(open_box):
    box = open_box(tools={"who": USER.get})
    token = USER.set("ann")
    try:
        assert box.execute("who()").value == "ann"
    finally:
        USER.reset(token)
    assert box.execute("who()").value == "nobody"

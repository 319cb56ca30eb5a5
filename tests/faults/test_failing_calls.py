"""A system call that fails in a process of ours: one caller's matter, whoever it was made for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import roles
from faulting import fault
from world import OPERATIONS, World

pytestmark = pytest.mark.asyncio(loop_scope="module")
ERRORS = {
    "fork": "EAGAIN", "namespace": "ENOSPC", "mount": "ENOMEM", "open": "EMFILE",
    "write": "ENOSPC", "send": "ENOBUFS", "receive": "ENOMEM", "mkdir": "ENOSPC",
    "memory": "ENOMEM",
}  # fmt: skip
"""How a call of a kind fails when the machine is full."""
ROLES = {
    "supervisor": (roles.supervisor, "self"),
    "zygote host": (roles.zygote_host, "self"),
    "zygote": (roles.zygote, "self"),
    "forked guest": (roles.zygote, "children"),
    "supervisor's child": (roles.supervisor, "children"),
}
"""Where calls fail. A supervisor's child builds the jail of a guest that is started, or the
folders of a clone. No guest's code runs in any of them."""
TABLE = [
    ("open", "supervisor"), ("open", "zygote host"), ("open", "zygote"), ("open", "forked guest"),
    ("start", "supervisor"), ("start", "supervisor's child"),
    ("overrun", "supervisor"), ("overrun", "zygote"), ("fork", "supervisor"),
    ("fork", "supervisor's child"), ("save", "supervisor"), ("destroy", "supervisor"),
    ("destroy", "zygote"),
]  # fmt: skip
"""What a caller does, and which processes make calls for that."""
MAX_REFUSALS = 8
"""Of memory, in turn; a guest that is started makes some hundred such calls."""
SAMPLE = [row for row in TABLE if row not in [("overrun", "zygote"), ("destroy", "zygote")]]
"""Without two whose only call, the report of an end, may come after the caller has its answer."""


@pytest.mark.parametrize(("operation", "role"), SAMPLE)
async def test_the_first_call_of_each_kind_fails(world: World, operation: str, role: str):
    kinds = await _run(world, operation, role, "any", 0)
    assert kinds, "this process makes no call at all: the table is wrong"
    hits = [kind for kind in kinds if "hit" in await _run(world, operation, role, kind, 1)]
    assert hits, "not one call was met again"  # a group that is kept saves a mkdir


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("operation", "role"), TABLE)
async def test_each_call_fails_in_turn(world: World, operation: str, role: str):
    for kind, count in (await _run(world, operation, role, "any", 0)).items():
        for nth in range(2, count + 1):
            await _run(world, operation, role, kind, nth)


@pytest.mark.parametrize(("operation", "role"), TABLE)
async def test_memory_is_refused(world: World, operation: str, role: str):
    """Each time that a process asks the kernel for memory there may be none; most ask for none."""
    count = (await _run(world, operation, role, "memory", 0))["memory"]
    for nth in range(1, count + 1, 1 + count // MAX_REFUSALS):
        await _run(world, operation, role, "memory", nth)


async def _run(world: World, operation: str, role: str, kind: str, nth: int) -> Counter[str]:
    """Make the n-th call fail, and see that nobody else notices; which calls there were."""
    find, scope = ROLES[role]
    subject = await world.open()
    with fault(find(), kind, nth, ERRORS.get(kind, "count") if nth else "count", scope) as injected:
        answer = await OPERATIONS[operation](world, subject)
        if role == "zygote host" and not nth and kind == "any":
            await asyncio.to_thread(injected.met, b"send")  # it goes on after the answer, till then
        calls = injected.end() if not nth else Counter[str]()
        await world.close(answer, subject)
        calls += injected.end()
    await world.check(spared={"forked", "started"}, what=f"{kind} {nth} fails in {role}")
    return calls

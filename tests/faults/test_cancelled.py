"""A caller that goes away: its call is cancelled while a process of ours stands at one step of it.

The process is held at its n-th call, the caller is cancelled, the process goes on: so each moment
between two steps is met, on a machine of any speed.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import roles
from faulting import Fault, fault
from world import ANSWER_SECONDS, OPERATIONS, World

import atoll

pytestmark = pytest.mark.asyncio(loop_scope="module")
PLACES = {
    "supervisor": (roles.supervisor, "self"),
    "zygote host": (roles.zygote_host, "self"),
    "zygote": (roles.zygote, "self"),
    "forked guest": (roles.zygote, "children"),
    "supervisor's child": (roles.supervisor, "children"),
}
TABLE = [
    ("open", "supervisor"), ("open", "zygote host"), ("open", "zygote"), ("open", "forked guest"),
    ("start", "supervisor"), ("start", "supervisor's child"), ("fork", "supervisor"),
    ("fork", "supervisor's child"), ("save", "supervisor"), ("overrun", "supervisor"),
    ("destroy", "supervisor"),
]  # fmt: skip
AFTER_SECONDS = 10.0
"""Some processes begin their work when the call has its answer, on a busy machine later."""
STEP = 14
"""In the sample, every fourteenth call."""


@pytest.mark.parametrize(("operation", "role"), TABLE)
async def test_a_call_is_cancelled(world: World, operation: str, role: str):
    await _cancel_at_each(world, operation, role, STEP)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("operation", "role"), TABLE)
async def test_a_call_is_cancelled_at_every_step(world: World, operation: str, role: str):
    await _cancel_at_each(world, operation, role, 1)


async def _cancel_at_each(world: World, operation: str, role: str, step: int) -> None:
    nth = 1
    while await _cancel_at(world, operation, role, nth):
        nth += step
    assert nth > 1, "this process makes no call at all: the table is wrong"


async def _cancel_at(world: World, operation: str, role: str, nth: int) -> bool:
    """Cancel a call while a process stands at its n-th step; whether there was such a step."""
    find, scope = PLACES[role]
    subject = await world.open()
    with fault(find(), "any", nth, "hold", scope) as held:
        call = asyncio.ensure_future(OPERATIONS[operation](world, subject))
        met = await _met_before(held, call, AFTER_SECONDS if nth == 1 else 0)
        call.cancel()
        await asyncio.sleep(0)  # it is told before the process goes on
        held.release()
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await world.close(await call)
    await world.close(subject)
    await world.check(
        spared={"forked", "started"}, what=f"{operation} cancelled at {nth} of {role}"
    )
    return met


async def _met_before(
    held: Fault, call: asyncio.Future[atoll.BaseSandbox], patience: float
) -> bool:
    """Wait until the process is held or the call has ended; whether it is held."""
    met = asyncio.ensure_future(asyncio.to_thread(held.met))
    await asyncio.wait({met, call}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({met}, timeout=patience)
    if not met.done():
        held.end()
    return await met

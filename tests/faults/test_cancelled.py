"""A caller that goes away: its call is cancelled while a process of ours stands at one step of it.

The process is held at its n-th call, the caller is cancelled, the process goes on: so each moment
between two steps is met, on a machine of any speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
import roles
from faulting import Fault, fault
from world import ANSWER_SECONDS, CONFIG, OPERATIONS, World

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


class CancelledAtAwait:
    """An awaitable that cancels its task where its work waits for the n-th time."""

    def __init__(self, work: Awaitable[Any], nth: int) -> None:
        self._work, self._left = work, nth

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._work.__await__()
        go_on: Callable[[], Any] = functools.partial(steps.send, None)
        while True:
            try:
                waited_for = go_on()
            except StopIteration as end:
                return end.value
            self._left -= 1
            if self._left == 0:
                asyncio.current_task().cancel()
            try:
                yield waited_for
                go_on = functools.partial(steps.send, None)
            except BaseException as exc:
                go_on = functools.partial(steps.throw, exc)

    @property
    def met(self) -> bool:
        """Whether it has waited so often."""
        return self._left <= 0


async def _restored(world: World, box: atoll.BaseSandbox) -> atoll.BaseSandbox:
    config = dataclasses.replace(CONFIG, context="a text " * 20_000, state=await box.save())
    return await world.pool.open(config)


async def _rolled_back(_world: World, box: atoll.BaseSandbox) -> None:
    await box.rollback(await box.checkpoint())


async def _run(world: World, _box: atoll.BaseSandbox) -> None:
    await world.pool.run("print(6 * 7)", CONFIG)


AT_AWAITS: dict[str, Callable[[World, atoll.BaseSandbox], Awaitable[Any]]] = {
    "open": lambda world, _: world.open(),
    "start": lambda world, _: world.open_started(),
    "fork": lambda _, box: box.fork(),
    "run": _run,
    "restored": _restored,
    "rolled back": _rolled_back,
    "files": lambda _, box: box.files.write("a.txt", "text"),
    "destroy": lambda _, box: box.destroy(),
}


@pytest.mark.parametrize("operation", AT_AWAITS)
async def test_a_call_is_cancelled_at_each_await(world: World, operation: str):
    nth, met = 0, True
    while met:
        nth += 1
        subject = await world.open()
        work = CancelledAtAwait(AT_AWAITS[operation](world, subject), nth)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await world.close(await asyncio.ensure_future(_awaited(work)))
        except asyncio.CancelledError:
            pass
        met = work.met
        await world.close(subject)
        await world.check(
            spared={"forked", "started"}, what=f"{operation} cancelled at its await {nth}"
        )
    assert nth > 1, "this call waits for nothing: the table is wrong"


async def _awaited(work: CancelledAtAwait) -> Any:
    return await work


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

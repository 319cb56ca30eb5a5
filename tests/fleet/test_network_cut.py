"""A node that is cut off from the network, and joined again, while it still reaches the store."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.aio import create_sandbox
from atoll.errors import SandboxLostError
from atoll.fleet import log as logs
from atoll.fleet.client import Fleet
from atoll.fleet.log import SessionLog
from atoll.fleet.store import Store
from bench.local_fleet import LocalFleet, Network, free_port

pytestmark = pytest.mark.timeout(400)
ANSWER_SECONDS = 60


@pytest.fixture
def fleet() -> Iterator[LocalFleet]:
    """A head and two nodes, each in a network namespace of its own."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed: make test-fleet")
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    with tempfile.TemporaryDirectory(prefix="an", dir="/tmp") as folder, Network() as network:
        made = LocalFleet(Path(folder), free_port(), network=network, keep_log=True)
        try:
            made.start("a", "b")
            with pytest.MonkeyPatch.context() as patch:
                for name, value in made.environment().items():
                    patch.setenv(name, value)
                yield made
        finally:
            made.stop()


async def test_a_node_that_is_cut_off_loses_its_sessions_and_writes_nothing_when_it_is_back(
    fleet: LocalFleet,
) -> None:
    """Its cell ends while it is cut off: the store, which it reaches, refuses the commit."""
    assert fleet.network is not None
    store = Store(fleet.settings.store)
    async with Fleet.connect() as client:
        async with asyncio.timeout(ANSWER_SECONDS):
            while len((await client.status())["nodes"]) < 2:  # noqa: ASYNC110 - it polls too
                await asyncio.sleep(0.1)
        box = await create_sandbox(backend="ray", durability="cell", auto_recover=True)
        log = SessionLog(store, box.session or "")
        await box.execute("x = 1; import time")
        owner = (await log.last()).owner
        running = asyncio.ensure_future(box.execute("time.sleep(12); x = 'stale'"))
        await asyncio.sleep(0.5)
        fleet.network.cut(owner)
        async with asyncio.timeout(ANSWER_SECONDS):
            with pytest.raises(SandboxLostError, match="not repeated without a key"):
                await running
            assert (await box.execute("x = x + 1; x")).value == 2
        await asyncio.sleep(12)  # the cell of the old owner ends meanwhile, and commits
        fleet.network.join(owner)
        assert (await box.execute("x = x + 1; x")).value == 3
        entries = await log.entries()
        claims = [one for one in entries if one.kind == logs.CLAIM]
        assert [one.epoch for one in claims] == [2]
        assert [one.owner for one in claims] != [owner]
        assert not [one for one in entries if one.epoch == 1 and one.number > claims[0].number]
        await box.destroy()

"""A node that could not start is started again, and what the first try opened is closed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from atoll.fleet import node as nodes
from atoll.fleet.node import NodeHost
from atoll.fleet.settings import FleetSettings
from atoll.fleet.store import Store
from atoll.hosting.pool import Pool


async def test_a_start_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, list[str]] = {"pool": [], "store": []}

    class CountedPool(Pool):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made["pool"].append("open")

        async def close(self) -> None:
            await super().close()
            made["pool"].append("closed")

    class CountedStore(Store):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made["store"].append("open")

        def close(self) -> None:
            super().close()
            made["store"].append("closed")

    monkeypatch.setattr(nodes, "Pool", CountedPool)
    monkeypatch.setattr(nodes, "Store", CountedStore)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    settings = FleetSettings(store=str(tmp_path / "store"), capacity=2, tier="bare")
    host = NodeHost("n", settings.to_json(), address="203.0.113.1")  # not of this machine
    for tries in (1, 2):
        with pytest.raises(OSError, match="address"):
            await host.start()
        assert made == {"pool": ["open", "closed"] * tries, "store": ["open", "closed"] * tries}
        assert not host._watching
        assert not [one for one in os.listdir(tmp_path / "tmp") if one.startswith("atoll-node-")]
    host._address = "127.0.0.1"
    address = await host.start()
    _, writer = await asyncio.open_connection("127.0.0.1", address.port)
    writer.close()
    await host.close()
    assert made["pool"][-1] == made["store"][-1] == "closed"

"""A fleet whose nodes the tests may kill: one for each file of tests."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import stores

from atoll.fleet.store import Store
from bench.local_fleet import LocalFleet, free_port


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """A head and two nodes, each in a pid namespace of its own."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed: make test-fleet")
    with tempfile.TemporaryDirectory(prefix="atoll-test-", dir="/tmp") as folder:
        made = LocalFleet(Path(folder), free_port(), keep_log=True)
        try:
            made.start("a", "b")
            with pytest.MonkeyPatch.context() as patch:
                for name, value in made.environment().items():
                    patch.setenv(name, value)
                yield made
        finally:
            made.stop()


@pytest.fixture(scope="module", params=["folder", "small", "moto", "seaweedfs"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A store of each kind; a server of this machine is started once."""
    folder: Path = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "folder":
            yield Store(str(folder))
            return
        _require(request.param)
        servers = {"small": stores.small_s3, "moto": stores.moto}
        serve = servers.get(request.param, lambda: stores.seaweed(folder))
        with serve() as environment:
            for name, value in environment.items():
                patch.setenv(name, value)
            yield Store(f"s3://fleet/{secrets.token_hex(4)}")


def _require(name: str) -> None:
    program = Path(sys.executable).with_name("weed")
    there = find_spec("moto") is not None if name == "moto" else program.exists()
    there = there or name == "small"
    if not there:
        pytest.skip(f"{name} is not installed: make test-fleet")

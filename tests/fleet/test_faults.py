"""Bad input and faults of a fleet: each is said in words, and nothing listens where it should not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from atoll.errors import ConfigError, FleetError
from atoll.fleet import cluster
from atoll.fleet.machine import Machine, claim_store
from atoll.fleet.settings import FleetSettings, mark_prefix, unmark_prefix
from atoll.fleet.store import MARK, Store
from bench.local_fleet import free_port


def test_ray_is_imported_by_nobody_who_does_not_use_a_fleet() -> None:
    code = (
        "import sys, atoll, atoll.cli.arguments, atoll.fleet.client; sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_missing_ray_is_said_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FleetError, match=r"needs the extra `ray`\. Type: .*pip install.*ray"):
        cluster.library()


@pytest.mark.parametrize("address", ["fleet", "10.0.0.1", "10.0.0.1:", ":6379", "10.0.0.1:x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(FleetError, match="a fleet's address is HOST:PORT"):
        cluster.check_listening(address)


def test_a_fleet_that_is_not_there_is_said_at_once() -> None:
    port = free_port()
    with pytest.raises(
        FleetError, match=f"no fleet answers at 127.0.0.1:{port}: Connection refused"
    ):
        cluster.connect(f"127.0.0.1:{port}")


def test_versions_that_differ_are_said_to() -> None:
    fault = RuntimeError("Version mismatch: The cluster was started with:\n Ray: 2.1 Python: 3.9")
    text = cluster._explain("h:1", fault)
    assert text.startswith("Python or Ray differs between this process and the fleet at h:1")
    assert "Ray: 2.1 Python: 3.9" in text


def test_a_machine_with_another_key_or_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = FleetSettings(store=str(tmp_path))
    settings.check_here()
    monkeypatch.setenv("ATOLL_STATE_KEY", "quite another key than that one")
    with pytest.raises(FleetError, match="signs states with another key"):
        settings.check_here()
    other = FleetSettings(store=str(tmp_path), version="9.9")
    with pytest.raises(FleetError, match=r"the fleet runs Atoll 9\.9"):
        other.check_here()


async def test_two_fleets_cannot_share_a_prefix(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first, second = FleetSettings(store=store.url), FleetSettings(store=store.url)
    await claim_store(first, adopt=False)
    await claim_store(first, adopt=False)
    with pytest.raises(FleetError, match=f"belongs to the fleet {first.ident} of .*--adopt"):
        await claim_store(second, adopt=False)
    await mark_prefix(store, second, adopt=True)
    with pytest.raises(FleetError, match=f"belongs to the fleet {second.ident}"):
        await mark_prefix(store, first)
    await unmark_prefix(store, first)  # it is not its own any more
    await unmark_prefix(store, second)
    await mark_prefix(store, first)


@pytest.mark.parametrize("mark", [b"", b"{", b"[1]"])
async def test_a_damaged_mark_of_a_prefix_is_an_error_in_words(tmp_path: Path, mark: bytes) -> None:
    store, settings = Store(str(tmp_path)), FleetSettings(store=str(tmp_path))
    assert await store.create(MARK, mark)
    with pytest.raises(FleetError, match="belongs to a fleet: two fleets cannot share"):
        await mark_prefix(store, settings)
    await unmark_prefix(store, settings)
    await mark_prefix(store, settings, adopt=True)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_a_fleet_does_not_listen_everywhere(bind: str) -> None:
    with pytest.raises(ConfigError, match="would let everybody run code here"):
        Machine(bind=bind)


def test_rays_health_checks_and_monitor_are_set_unless_the_user_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_health_check_period_ms", "9000")
    environment = Machine().environment()
    assert environment["RAY_memory_monitor_refresh_ms"] == "0"
    assert environment["RAY_health_check_period_ms"] == "9000"
    assert "--include-dashboard=false" in Machine().command()

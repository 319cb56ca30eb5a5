"""Which node a session goes to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from atoll.errors import BusyError
from atoll.fleet import cluster
from atoll.fleet.cluster import NodeRow
from atoll.fleet.messages import NodeFacts, image_key
from atoll.fleet.router import DriverLink, Router
from atoll.fleet.settings import FleetSettings


def unused(*_args: Any) -> Any:
    raise AssertionError("no node is spoken to")


def router(tier: str | None = None, **nodes: dict[str, Any]) -> Router:
    """A router that knows these nodes, by what they told of themselves."""
    made = Router(FleetSettings(store="/s", tier=tier), unused, unused, unused)
    for name, told in nodes.items():
        link = DriverLink(NodeRow(ident=name, name=name, address="x"), None, unused, unused, unused)
        link.facts = NodeFacts(**{"capacity": 100, "contexts": [], "tiers": {}, **told})
        link.own = link.facts.sessions
        made.links[name] = link
    return made


def parked(**tiers: int) -> dict[str, Any]:
    return {tier: {"parked": count} for tier, count in tiers.items()}


def test_the_least_loaded_node_is_taken() -> None:
    nodes = router(a={"sessions": 5}, b={"sessions": 4}, c={"sessions": 4, "capacity": 10})
    assert nodes.pick().row.name == "b"


def test_a_node_with_a_parked_guest_of_the_tier_may_be_a_bit_fuller() -> None:
    warm = {"sessions": 2, "tiers": parked(numeric=1, bare=0)}
    nodes = router("bare", a={"tiers": parked(bare=4)}, b=warm)
    assert nodes.pick(tier="numeric").row.name == "b"
    assert nodes.pick(tier="bare").row.name == "a"
    assert nodes.pick().row.name == "a", "the fleet's own tier"
    nodes.links["b"].own = 4
    assert nodes.pick(tier="numeric").row.name == "a", "it is too full by now"


def test_parked_guests_that_others_will_take_do_not_count() -> None:
    nodes = router(a={}, b={"sessions": 1, "tiers": parked(bare=1)})
    picked = nodes.pick(tier="bare")
    assert picked.row.name == "b"
    with picked.place():
        assert nodes.pick(tier="bare").row.name == "a"
    assert nodes.pick(tier="bare").row.name == "b"


def test_a_context_that_is_there_counts_more_than_a_parked_guest() -> None:
    nodes = router(a={"tiers": parked(bare=9)}, b={"sessions": 1, "contexts": ["c0"]})
    assert nodes.pick("c0", "bare").row.name == "b"


def test_full_drained_and_excluded_nodes_are_not_taken() -> None:
    nodes = router(a={"sessions": 100}, b={"draining": True}, c={})
    assert nodes.pick().row.name == "c"
    with pytest.raises(BusyError, match="all 3 nodes of the fleet are full"):
        nodes.pick(without=frozenset("c"))


async def test_a_node_that_could_not_be_used_is_forgotten_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that dies is lost before Ray knows: until then it is tried in vain."""
    nodes = router()
    nodes.refused = {"a": "it has another key", "b": "the actor died"}
    monkeypatch.setattr(nodes, "_connect", lambda _row: asyncio.sleep(0))
    row = NodeRow(ident="a", name="a", address="x")
    monkeypatch.setattr(cluster, "nodes", lambda: [row])
    await nodes.refresh()
    assert nodes.refused == {"a": "it has another key"}


def test_a_node_that_has_the_image_may_be_fuller_until_it_is_much_fuller() -> None:
    has_it = [image_key("docker.io/library/python:3.12-slim")]
    nodes = {"has": {"sessions": 20, "images": has_it}, "empty": {"sessions": 0}}
    made = router(**nodes)
    assert made.pick().row.name == "empty"
    assert made.pick(image="python:3.12-slim").row.name == "has"
    assert made.pick(image="python:3.13").row.name == "empty"
    assert made.pick(image="not an image").row.name == "empty"
    made.links["has"].own = 60
    assert made.pick(image="python:3.12-slim").row.name == "empty"

"""Ray, as far as a fleet needs it: connect, list the nodes, find the actor of each. Imported late.

Nothing else of Atoll imports ray.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from atoll.errors import FleetError
from atoll.extras import hint
from atoll.fleet.settings import FleetSettings

NAMESPACE = "atoll"
RESOURCE = "atoll"
"""Ray's resource that marks a node which takes sessions."""
CONNECT_SECONDS = 60.0
MAX_CALLS = 1000
"""Calls of a node's actor at one time: drivers that connect, contexts that are put there."""
ENVIRONMENT = {
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a stray call would start a cluster of its own
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill the actor that owns the sessions
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
LOOPBACK = "127.0.0.1"
_KEY = b"atoll:fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node of the cluster that takes sessions."""

    ident: str
    name: str
    address: str


def library(address: str | None = None) -> Any:
    """Return the module ray, which reads these variables once; FleetError says what to install."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415 - 0.5 s, and an extra
    except ImportError:
        raise FleetError(f"a fleet needs the extra `ray`. {hint('ray')}") from None
    if address is not None and is_loopback(address):
        _stay_on_loopback()
    return ray


def _stay_on_loopback() -> None:
    """Keep Ray from taking 127.0.0.1 for the machine's outer address: it would listen everywhere.

    No option of Ray's says so for a cluster of several nodes; a test looks at what listens.
    """
    from ray._private import services  # noqa: PLC0415

    services.get_node_ip_address = lambda address=None: LOOPBACK  # noqa: ARG005


def connect(address: str, seconds: float = CONNECT_SECONDS) -> None:
    """Make this process a driver of the cluster; FleetError if that fails, or takes too long.

    It blocks; ray.init itself may block for minutes, and has no limit of its own.
    """
    check_listening(address)
    ray = library(address)
    outcome: list[BaseException | None] = []

    def work() -> None:
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
            outcome.append(None)
        except BaseException as exc:  # noqa: BLE001 - raised below
            outcome.append(exc)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise FleetError(f"the fleet at {address} did not answer within {seconds:g} s")
    if outcome[0] is not None:
        raise FleetError(_explain(address, outcome[0]))


def check_listening(address: str, seconds: float = 3.0) -> None:
    """Raise FleetError at once if nothing listens there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise FleetError(f"a fleet's address is HOST:PORT, not {address!r}")
    try:
        socket.create_connection((host, int(port)), seconds).close()
    except OSError as exc:
        reason = exc.strerror or exc
        raise FleetError(
            f"no fleet answers at {address}: {reason}. Type: atoll fleet start"
        ) from None


def is_loopback(address: str) -> bool:
    """Return whether an address is of this machine alone."""
    return address.rpartition(":")[0] in ("127.0.0.1", "localhost", "::1", "[::1]")


def nodes() -> list[NodeRow]:
    """Return the nodes that live and take sessions."""
    return [
        NodeRow(
            ident=node["NodeID"],
            name=str(node.get("NodeName") or node["NodeID"][:12]),
            address=str(node["NodeManagerAddress"]),
        )
        for node in library().nodes()
        if node["Alive"] and node["Resources"].get(RESOURCE)
    ]


def node_actor(row: NodeRow, settings: str) -> Any:
    """Return the actor of a node; it is made if the node has none."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    from atoll.fleet.node import NodeActor  # noqa: PLC0415 - it has the pool, and the jail

    made = library().remote(NodeActor)
    return made.options(
        name=f"node-{row.ident}",
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=MAX_CALLS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(row.ident, soft=False),
    ).remote(row.name, settings, row.address)


def write_settings(address: str, settings: FleetSettings) -> None:
    """Let every process of the cluster know the settings; it need not have a node yet."""
    library(address)
    head = import_module("ray._raylet").GcsClient(address=address)  # no driver is needed
    head.internal_kv_put(_KEY, settings.to_json().encode(), True, None)


def read_settings() -> FleetSettings:
    """Return the settings; FleetError if the cluster was not started as a fleet."""
    from ray.experimental.internal_kv import _internal_kv_get  # noqa: PLC0415

    settings = _internal_kv_get(_KEY)
    if not settings:
        raise FleetError("this Ray cluster is not a fleet: start its head with `atoll fleet start`")
    return FleetSettings.from_json(settings)


def _explain(address: str, exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    if "ersion mismatch" in text:
        return (
            f"Python or Ray differs between this process and the fleet at {address}: both must "
            f"be the same on every machine. {text[:400]}"
        )
    return f"the fleet at {address} cannot be joined: {type(exc).__name__}: {text[:400]}"

"""Counters for Prometheus. Labels are names of routes, outcomes and nodes: no id, key or tenant."""

from __future__ import annotations

import re
from collections import Counter as Counts
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.service.api.overview import NodeInfo, Tiers
    from atoll.service.core.service import Service
    from atoll.service.core.work import RunResult
    from atoll.service.http.problems import Problem

_NODE_FIGURES = {
    "load": "share of a node's places that are taken",
    "sessions": "sessions on a node",
    "capacity": "sessions that a node may have",
    "executing": "cells that run on a node",
    "queued": "cells that wait on a node",
    "durable": "sessions on a node that are saved to the store",
    "save_lag_seconds": "age of the oldest change on a node that is not in the store",
    "draining": "1 if a node takes no new sessions",
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
STATES: tuple[Literal["running", "paused"], ...] = ("running", "paused")
_CODE = re.compile(r"[a-z_0-9]{1,40}\Z")
"""A code of ours; a text of a client's would make a time series of its own."""


class Metrics:
    """Counters of one service, in a registry of its own."""

    def __init__(self, service: Service) -> None:
        self._service = service
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"atoll_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"atoll_{name}_seconds", text, labels, registry=registry)

        self.requests = counter("http_requests", "Requests", "route", "method", "status")
        self.seconds = histogram("http_request_duration", "Time to answer", "route")
        self.refused = counter("rejected", "Requests refused", "reason")
        self.auth_failures = counter("auth_failures", "Requests without a valid key", "reason")
        self.executions = counter("executions", "Executions by outcome", "outcome", "isolation")
        self.cpu = counter("execution_cpu_seconds", "CPU time of executions")
        self.durations = histogram("execution_duration", "Time that code ran")
        self.queue_wait = histogram("queue_wait", "Time that executions waited for their turn")
        self.forks = histogram("fork", "Time to make a live clone of a session")
        self.closed = counter("sessions_closed", "Sessions that have ended", "reason")
        self.file_bytes = counter("files_bytes", "Bytes of files", "direction")
        self.tool_calls = counter("tool_calls", "Calls of clients' tools", "outcome")
        self.runs = counter("rlm_runs", "Runs of agents", "outcome")
        self.run_cost = counter("rlm_cost_usd", "Cost of runs of agents", "model")
        self.outcomes: Counts[str] = Counts()
        self.rejected: Counts[str] = Counts()
        self.answers, self.cpu_seconds = 0, 0.0
        registry.register(self)
        ProcessCollector(registry=registry)

    def executed(self, result: RunResult) -> None:
        """Count an execution that has ended."""
        self.executions.labels(result.kind, result.isolation).inc()
        self.outcomes[result.kind] += 1
        self.cpu_seconds += (result.cpu_ms or 0) / 1000
        self.cpu.inc((result.cpu_ms or 0) / 1000)
        self.durations.observe(result.duration_ms / 1000)
        self.queue_wait.observe(result.queue_ms / 1000)

    def answered(self, route: str, method: str, status: int, seconds: float, code: str) -> None:
        """Count a request that was answered."""
        method = method if method in _METHODS else "other"
        self.requests.labels(route, method, status).inc()
        self.seconds.labels(route).observe(seconds)
        self.answers += 1
        if code:
            code = code if _CODE.match(code) else "other"
            self.rejected[code] += 1
            self.refused.labels(code).inc()

    def refused_credential(self, problem: Problem) -> None:
        """Count a request that was refused for its credential, by the reason."""
        if problem.is_of_credentials:
            self.auth_failures.labels(problem.reason).inc()

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        return generate_latest(self._registry)

    def describe(self) -> list[Any]:
        """Return nothing: what `collect` gives is known when it is asked."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield current gauges."""
        service = self._service
        now = {
            "executing": (service.limit.running, "Executions that run"),
            "queue_depth": (service.limit.waiting, "Executions that wait for their turn"),
            "sessions_live": (service.table.live, "Sessions in memory"),
            "sessions_memory_bytes": (service.table.memory, "Memory of sessions, as last measured"),
            "draining": (int(service.draining), "Whether new work is refused"),
            "held_bytes": (service.memory.held, "Memory that requests make the service hold"),
            "spooled_bytes": (service.disk.held, "Uploads on their way, on disk"),
            "ready": (int(service.isolation is not None), "Whether sandboxes can be opened"),
        }
        for name, (value, text) in now.items():
            yield GaugeMetricFamily(f"atoll_{name}", text, value=value)
        states = Counts(session.state for session in service.sessions.all())
        yield _labelled("sessions", "Sessions", "state", {name: states[name] for name in STATES})
        yield _rejections(service)
        yield from _of_tiers(service.pool_stats())
        if service.fleet is not None:
            yield from _of_nodes(service.fleet.describe().nodes)


def _rejections(service: Service) -> CounterMetricFamily:
    """Return how often a request found no room, by budget and reason."""
    text = "Requests for whose bytes there was no room"
    family = CounterMetricFamily("atoll_held_rejections", text, labels=["budget", "reason"])
    for budget, name in ((service.memory, "memory"), (service.disk, "disk")):
        for reason, times in budget.rejected.items():
            family.add_metric([name, reason], times)
    return family


def known_method(method: str) -> str:
    """Return a method of HTTP; one of the client's own making is `other`."""
    return method if method in _METHODS else "other"


def _of_tiers(tiers: Tiers) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """Yield pool metrics per tier."""
    parked = {tier: facts["parked"] for tier, facts in tiers.items()}
    yield _labelled("pool_parked", "Warm guests that wait for work", "tier", parked)
    takes = CounterMetricFamily(
        "atoll_pool_takes", "Guests taken for sandboxes", labels=["tier", "warm"]
    )
    restarts = CounterMetricFamily(
        "atoll_zygote_restarts", "Zygotes started in the place of another", labels=["tier"]
    )
    for tier, facts in tiers.items():
        takes.add_metric([tier, "true"], facts.get("taken_parked", 0))
        takes.add_metric([tier, "false"], facts.get("taken_new", 0))
        restarts.add_metric([tier], facts.get("restarts", 0))
    yield takes
    yield restarts


def _of_nodes(nodes: list[NodeInfo]) -> Iterator[GaugeMetricFamily]:
    """Yield what a fleet's nodes reported last."""
    for name, text in _NODE_FIGURES.items():
        family = GaugeMetricFamily(f"atoll_fleet_node_{name}", text, labels=["node"])
        for node in nodes:
            family.add_metric([node.name], float(getattr(node, name.removesuffix("_seconds"))))
        yield family
    parked = GaugeMetricFamily(
        "atoll_fleet_node_parked", "guests that wait on a node", labels=["node", "tier"]
    )
    for node in nodes:
        for tier, stats in node.tiers.items():
            parked.add_metric([node.name, tier], stats["parked"])
    yield parked


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    result = GaugeMetricFamily(f"atoll_{name}", text, labels=[label])
    for value, number in values.items():
        result.add_metric([value], number)
    return result

"""Structured events of executions: an event's name and its fields, to a sink of the caller's."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.network import NetworkUse
    from atoll.policy import ExecutionPolicy
    from atoll.types import ExecuteResponse, SandboxResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """Something that happened, as data."""

    name: str
    level: int
    fields: Mapping[str, Any]
    time: float = field(default_factory=time.time)


SECURITY_EVENTS = {
    "memory": "memory_exhaustion",
    "cpu": "cpu_exhaustion",
    "fuel": "fuel_exhaustion",
    "timeout": "timeout",
    "broken": "protocol_violation",
    "crashed": "crash",
    "refused": "guard_refusal",
}
"""What an execution's outcome is called as a security event."""

Sink = Callable[[LogEvent], None]

_LOGGER = logging.getLogger("atoll")
_LOGGER.addHandler(logging.NullHandler())  # quiet until somebody listens


def to_stdlib(event: LogEvent) -> None:
    """The default sink: one JSON line an event to the logger "atoll".

    JSON escapes control characters, so nothing a guest chose can forge a second record.
    """
    if _LOGGER.isEnabledFor(event.level):
        _LOGGER.log(event.level, "%s", json.dumps({"event": event.name, **event.fields}))


class SandboxLogger:
    """Hands events to a sink. Guest code and its output appear at DEBUG only."""

    def __init__(self, sink: Sink | None = to_stdlib) -> None:
        self._sink = sink
        """None: nothing is logged, and no event is made."""
        is_ours = sink is to_stdlib and type(self) is SandboxLogger
        self.listens: Callable[[], bool] = (
            partial(_LOGGER.isEnabledFor, logging.INFO) if is_ours else partial(bool, sink)
        )
        """Whether ordinary executions are logged; with a caller's sink they always are."""

    def log_execution_start(self, runtime: str, policy: ExecutionPolicy, code: str = "") -> None:
        """An execution begins: where, and under which limits."""
        if not self.listens():
            return  # then DEBUG is not heard either
        self._emit("execution_start", logging.INFO, runtime=runtime, policy=policy.snapshot())
        if self._sink is not to_stdlib or _LOGGER.isEnabledFor(logging.DEBUG):
            self._emit("execution_code", logging.DEBUG, code=code[:10_000])

    def log_execution_complete(self, result: SandboxResult) -> None:
        """An execution has ended: how, and what it took."""
        if not self.listens():
            return
        self._emit(
            "execution_complete",
            logging.INFO,
            success=result.success,
            kind=result.kind.value,
            duration_ms=round(result.duration_ms, 3),
            fuel_consumed=result.fuel_consumed,
            memory_used_bytes=result.memory_used_bytes,
            exit_code=result.exit_code,
            truncated=result.truncated,
            **({} if result.image is None else {"image": result.image}),
        )
        self.log_network(result.network)

    def log_network(self, use: NetworkUse | None) -> None:
        """The guest's requests; one that was refused is a security event as well."""
        for request in use.requests if use is not None else ():
            self._emit("network_request", logging.INFO, **request.facts())
            if request.refused is not None:
                self.log_security_event(
                    "network_refused", place=request.place, error=request.refused
                )

    def log_shell_complete(self, response: ExecuteResponse) -> None:
        """A shell command has ended, or was."""
        if self.listens():
            self._emit(
                "shell_complete",
                logging.INFO,
                exit_code=response.exit_code,
                truncated=response.truncated,
                error=response.error,
            )
            self.log_network(response.network)

    def log_security_event(self, event_type: str, **details: Any) -> None:
        """A limit was hit or a rule broken."""
        self._emit("security", logging.WARNING, type=event_type, **details)

    def _emit(self, name: str, level: int, **fields: Any) -> None:
        if self._sink is not None:
            self._sink(LogEvent(name=name, level=level, fields=fields))

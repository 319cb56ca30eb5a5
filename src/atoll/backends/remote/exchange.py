"""What travels beside an execution: what a session is to be like, its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.policy import ExecutionPolicy
from atoll.sandbox import signatures
from atoll.sandbox.output import LineSplitter
from atoll.sandbox.wire.options import HANDLERS, LIMITS, SERVICE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.config import SandboxConfig
    from atoll.network import NetworkPolicy


class Listener:
    """Hands the output of one execution to the caller's functions; raises what they raise."""

    def __init__(self, config: SandboxConfig, *, shell: bool) -> None:
        most = config.max_output_length
        on_stderr = None if shell else config.on_stderr
        self._lines = {
            name: LineSplitter(one, most)
            for name, one in (("stdout", config.on_stdout), ("stderr", on_stderr))
            if one is not None
        }
        self._on_output: Callable[[str, str], None] | None = config.on_output
        self._failure: Exception | None = None

    def hear(self, event: dict[str, Any]) -> None:
        """Take one event."""
        kind = event.get("type")
        if kind not in ("stdout", "stderr"):
            return
        text = str(event.get("text"))
        if self._on_output is not None and self._failure is None:
            try:
                self._on_output(kind, text)
            except Exception as exc:  # noqa: BLE001 - a caller's callback; raised at the end
                self._failure = exc
        if kind in self._lines:
            self._lines[kind].feed(text.encode("utf-8", "surrogatepass"))

    def finish(self) -> None:
        """Hand over last lines that had no end; raise what a callback raised."""
        for splitter in self._lines.values():
            splitter.finish()
        if self._failure is not None:
            raise self._failure


def new_session(config: SandboxConfig) -> dict[str, Any]:
    """Return the body that opens a session, but for its context and its state."""
    policy, usual = config.policy, ExecutionPolicy()
    limits = {
        name: getattr(policy, name)
        for name in LIMITS
        if getattr(policy, name) != getattr(usual, name)
    }
    handlers = [name for name in HANDLERS if getattr(config, name) is not None]
    level = config.min_isolation
    return {
        **{given: getattr(config, name) for name, given in SERVICE_NAMES.items()},
        "network": None if config.network is None else _network_fields(config.network),
        "policy": limits,
        "env": dict(policy.env),
        "min_isolation": None if level is None else str(level),
        "tools": signatures.describe_all(config.tools),
        "callbacks": [name.removeprefix("on_") for name in handlers],
    }


def _network_fields(policy: NetworkPolicy) -> dict[str, Any]:
    return {name: one for name, one in policy.plain().items() if name != "private"}

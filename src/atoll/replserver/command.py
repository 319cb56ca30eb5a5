"""A configuration as the options of `atoll repl-server`, which has no other way to be told."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from atoll.config import REPLConfig
from atoll.errors import ConfigError
from atoll.policy import ExecutionPolicy

_CARRIED = ("backend", "python", "min_isolation", "timeout_ms", "policy", "logger")
_CARRIED_LIMITS = ("memory_bytes", "disk_bytes")


def arguments(config: REPLConfig) -> list[str]:
    """The options that say the same; ConfigError for what none of them can say."""
    _refuse_others(config, REPLConfig(), _CARRIED)
    _refuse_others(config.policy, ExecutionPolicy(), _CARRIED_LIMITS)
    level, policy = config.min_isolation, config.policy
    options: dict[str, object] = {
        "--backend": config.backend,
        "--python": config.python,
        "--min-isolation": None if level is None else str(level),
        "--timeout": config.timeout_ms / 1000,
        "--memory": policy.memory_bytes or "none",
        "--disk": policy.disk_bytes or "none",
    }
    return [str(part) for pair in options.items() if pair[1] is not None for part in pair]


def _refuse_others(given: Any, plain: Any, carried: tuple[str, ...]) -> None:
    for name in (one.name for one in fields(plain)):
        if name not in carried and getattr(given, name) != getattr(plain, name):
            raise ConfigError(
                f"a REPL server cannot be given {name}: leave it out, or set REPL_ENABLED=false"
            )

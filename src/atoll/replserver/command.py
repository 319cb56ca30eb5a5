"""Converts a configuration to the command-line options of `atoll repl-server`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from atoll.config import SandboxConfig
from atoll.errors import ConfigError
from atoll.network import NetworkPolicy
from atoll.policy import ExecutionPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

_FLAGS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "backend": ("--backend", str),
    "python": ("--python", str),
    "min_isolation": ("--min-isolation", str),
    "timeout_ms": ("--timeout", lambda milliseconds: milliseconds / 1000),
}
_LIMITS = {"memory_bytes": "--memory", "disk_bytes": "--disk"}


def arguments(config: SandboxConfig) -> list[str]:
    """Return the options of a configuration; ConfigError for settings without an option."""
    carried = {*_FLAGS, "policy", "logger", "network", "packages", "allow_source"}
    _refuse_others(config, SandboxConfig(), carried)
    _refuse_others(config.policy, ExecutionPolicy(), {*_LIMITS})
    found: list[object] = []
    for name, (flag, write) in _FLAGS.items():
        if (value := getattr(config, name)) is not None:
            found += [flag, write(value)]
    for name, flag in _LIMITS.items():
        found += [flag, getattr(config.policy, name) or "none"]
    for host in _hosts(config.network):
        found += ["--allow-host", host]
    for package in config.packages:
        found += ["--package", package]
    found += ["--allow-source"] if config.allow_source else []
    return [str(part) for part in found]


def _hosts(network: NetworkPolicy | None) -> tuple[str, ...]:
    """Return the hosts of a policy that has no other settings.

    SECURITY: headers must not be on a command line, which every user of the machine can read.
    """
    if network is None:
        return ()
    if network != NetworkPolicy(network.allow) or network.on_request is not None:
        raise ConfigError(
            "a REPL server can be given the hosts of a network policy and no more: leave the rest "
            "out, or set REPL_ENABLED=false"
        )
    return network.allow


def _refuse_others(given: Any, plain: Any, carried: set[str]) -> None:
    for name in (one.name for one in fields(plain)):
        if name not in carried and getattr(given, name) != getattr(plain, name):
            raise ConfigError(
                f"a REPL server cannot be given {name}: leave it out, or set REPL_ENABLED=false"
            )

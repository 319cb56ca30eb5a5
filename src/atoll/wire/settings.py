"""A client's configuration as plain JSON, and back on the daemon's side, every field checked.

Functions do not travel: their names do, and the daemon puts ones in their place that ask back.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from atoll.config import REPLConfig
from atoll.errors import AtollError, ConfigError
from atoll.policy import ExecutionPolicy, Isolation, Mount

HANDLERS = ("on_llm_query", "on_rlm_query", "on_stdin")
STREAMS = ("on_stdout", "on_stderr")
_PLAIN = (
    "timeout_ms", "max_output_length", "max_concurrency", "max_state_bytes", "preload",
    "explored_length", "lazy_queries", "argv",
)  # fmt: skip
_LIMITS = tuple(
    field.name
    for field in dataclasses.fields(ExecutionPolicy)
    if field.name not in ("env", "mounts")
)


def to_wire(config: REPLConfig) -> dict[str, Any]:
    """All of a configuration that concerns the daemon."""
    level = config.min_isolation
    return {
        **{name: getattr(config, name) for name in _PLAIN},
        "python": _interpreter(config.python),
        "workspace": None if config.workspace is None else str(config.workspace),
        "min_isolation": None if level is None else str(level),
        "tools": sorted(config.tools),
        "asks": [name for name in HANDLERS + STREAMS if getattr(config, name) is not None],
        "policy": _policy_to_wire(config.policy),
    }


def from_wire(data: dict[str, Any], **fields: Any) -> REPLConfig:
    """The configuration on the daemon's side, with `fields` on top."""
    try:
        python, level = data["python"], data["min_isolation"]
        return REPLConfig(
            **{name: data[name] for name in _PLAIN},
            python=None if python == sys.executable else _absolute(python),
            workspace=None if data["workspace"] is None else Path(_absolute(data["workspace"])),
            min_isolation=None if level is None else Isolation.parse(level),
            policy=_policy_from_wire(data["policy"]),
            **fields,
        )
    except AtollError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise ConfigError(f"not a configuration: {exc!r}"[:500]) from None


def asks(data: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """Which of `names` the client has a function for."""
    wanted = data.get("asks")
    return [name for name in names if isinstance(wanted, list) and name in wanted]


def tools(data: dict[str, Any]) -> list[str]:
    """The names of the client's tools."""
    names = data.get("tools")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError("tools are a list of names")
    return names


def _policy_to_wire(policy: ExecutionPolicy) -> dict[str, Any]:
    mounts = [[str(one.source.absolute()), one.target, one.writable] for one in policy.mounts]
    limits = {name: getattr(policy, name) for name in _LIMITS}
    return {**limits, "env": dict(policy.env), "mounts": mounts}


def _policy_from_wire(data: dict[str, Any]) -> ExecutionPolicy:
    mounts = tuple(
        Mount(source=Path(_absolute(source)), target=target, writable=bool(writable))
        for source, target, writable in data["mounts"]
    )
    if not all(isinstance(text, str) for pair in data["env"].items() for text in pair):
        raise ConfigError("environment variables are texts")
    limits = {name: data[name] for name in _LIMITS}
    return ExecutionPolicy(**limits, env=data["env"], mounts=mounts)


def _absolute(path: str) -> str:
    if not os.path.isabs(path):
        raise ConfigError(f"{path[:200]!r} is relative: the daemon has a folder of its own")
    return path


def _interpreter(python: str | None) -> str:
    """Unset means the Python that runs the client, not the one that runs the daemon."""
    if python is None:
        return sys.executable
    wanted = os.path.expanduser(python)
    return os.path.abspath(shutil.which(wanted) or wanted)

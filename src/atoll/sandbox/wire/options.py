"""Encodes a client's configuration as JSON; the daemon decodes it and validates every field.

Functions are not sent, only their names: the daemon replaces them by functions that call back.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.config import CROSSES, HANDLER, STREAM, SandboxConfig, options_with
from atoll.errors import AtollError, ConfigError
from atoll.network import NetworkPolicy
from atoll.policy import ExecutionPolicy, Isolation, Mount
from atoll.sandbox import signatures

if TYPE_CHECKING:
    from atoll.guest.shared.messages import Json
    from atoll.network import OnRequest

HANDLERS, STREAMS, SENT = map(options_with, (HANDLER, STREAM, CROSSES))
SERVICE_NAMES = {name: "template" if name == "preload" else name for name in SENT}
"""Options that are sent unchanged, by their names in a request to the service."""
LIMITS = tuple(
    field.name
    for field in dataclasses.fields(ExecutionPolicy)
    if field.name not in ("env", "mounts")
)


def to_wire(config: SandboxConfig) -> Json:
    """Return the part of a configuration that the daemon needs."""
    level = config.min_isolation
    return {
        **{name: getattr(config, name) for name in SENT},
        "python": config.python if config.image is not None else _interpreter(config.python),
        "interpreter": None if config.python is not None else _identity(),
        "workspace": None if config.workspace is None else str(config.workspace),
        "min_isolation": None if level is None else str(level),
        "tools": signatures.describe_all(config.tools),
        "asks": [name for name in HANDLERS + STREAMS if getattr(config, name) is not None],
        "policy": _policy_to_wire(config.policy),
        "network": None if config.network is None else config.network.plain(),
        "decides": config.network is not None and config.network.on_request is not None,
    }


def from_wire(data: Json, **fields: Any) -> SandboxConfig:
    """Return the configuration on the daemon's side, with `fields` replaced."""
    try:
        python, level = data["python"], data["min_isolation"]
        if data["image"] is None:
            own = data.get("interpreter") == _identity() or _is_own(python)
            python = None if own else _absolute(python)
        return SandboxConfig(
            **{name: data[name] for name in SENT},
            python=python,
            workspace=None if data["workspace"] is None else Path(_absolute(data["workspace"])),
            min_isolation=None if level is None else Isolation.parse(level),
            policy=_policy_from_wire(data["policy"]),
            **{"backend": "auto", **fields},
        )
    except AtollError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise ConfigError(f"not a configuration: {exc!r}"[:500]) from None


def asks(data: Json, names: tuple[str, ...]) -> list[str]:
    """Return those of `names` for which the client has a function."""
    wanted = data.get("asks")
    return [name for name in names if isinstance(wanted, list) and name in wanted]


def network(data: Json, on_request: OnRequest) -> NetworkPolicy | None:
    """Return the client's network policy; `on_request` calls the client, if it wants to decide."""
    plain = data.get("network")
    if plain is None:
        return None
    decides = data.get("decides") is True
    try:
        return NetworkPolicy.of({**plain, "on_request": on_request if decides else None})
    except TypeError as exc:
        raise ConfigError(f"not a network policy: {exc}"[:500]) from None


def tools(data: Json) -> list[Json]:
    """Return the descriptions of the client's tools; each has a name."""
    given = data.get("tools")
    described = [{"name": tool} if isinstance(tool, str) else tool for tool in given or []]
    if not isinstance(given, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in described
    ):
        raise ConfigError("tools must be a list of descriptions, each with a name")
    return described


def _policy_to_wire(policy: ExecutionPolicy) -> Json:
    mounts = [
        [str(mount.source.absolute()), mount.target, mount.writable] for mount in policy.mounts
    ]
    limits = {name: getattr(policy, name) for name in LIMITS}
    return {**limits, "env": dict(policy.env), "mounts": mounts}


def _policy_from_wire(data: Json) -> ExecutionPolicy:
    mounts = tuple(
        Mount(source=Path(_absolute(source)), target=target, writable=bool(writable))
        for source, target, writable in data["mounts"]
    )
    if not all(isinstance(text, str) for pair in data["env"].items() for text in pair):
        raise ConfigError("environment variables are texts")
    limits = {name: data[name] for name in LIMITS}
    return ExecutionPolicy(**limits, env=data["env"], mounts=mounts)


def _absolute(path: str) -> str:
    if not os.path.isabs(path):
        raise ConfigError(f"{path[:200]!r} is relative: the daemon has a folder of its own")
    return path


def _identity() -> list[Any]:
    """Return an identity that is the same for all names of the interpreter of this process.

    A venv has one under several names (`python`, `python3`): pip writes one of them into the
    script `atoll`, and the client may have been started by another.
    """
    base = getattr(sys, "_base_executable", sys.executable)
    return [os.path.realpath(base), [*sys.version_info[:3]], os.path.realpath(sys.prefix)]


def _is_own(python: str) -> bool:
    """Return whether a path is a name of the interpreter of this process.

    The folder decides which venv it is: two names are the same only if they are in one folder.
    """
    own = sys.executable
    same_folder = os.path.dirname(python) == os.path.dirname(own)
    return python == own or (same_folder and os.path.realpath(python) == os.path.realpath(own))


def _interpreter(python: str | None) -> str:
    """Return the interpreter to send: if unset, the client's own, not the daemon's."""
    if python is None:
        return sys.executable
    wanted = os.path.expanduser(python)
    return os.path.abspath(shutil.which(wanted) or wanted)

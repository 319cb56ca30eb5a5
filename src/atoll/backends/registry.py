"""The table of backends: name, class and summary of each. A backend is imported on first use."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from atoll.errors import (
    BackendUnavailableError,
    ConfigError,
    IsolationError,
    UnknownBackendError,
    UnsupportedError,
    in_words,
)
from atoll.extras import hint as install_hint
from atoll.policy import Capability, Isolation

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.sandbox.availability import Availability
    from atoll.sandbox.base import BaseSandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One row: `home` is module:class; `extra` is what to install for it."""

    home: str
    summary: str
    extra: str = ""
    optional: bool = False
    """Whether it has to be installed or started first, so that its absence is not a fault."""


BACKENDS: dict[str, Backend] = {
    "native": Backend(
        home="atoll.backends.native:NativePythonSandbox",
        summary="CPython in a jailed process of its own",
    ),
    "wasm": Backend(
        home="atoll.backends.wasm:PythonSandbox",
        summary="CPython in WebAssembly, in a jailed process of its own",
        extra="wasm",
        optional=True,
    ),
    "gvisor": Backend(
        home="atoll.backends.gvisor:GvisorSandbox",
        summary="CPython on a kernel of its own, gVisor's, in a jailed process",
        optional=True,
    ),
    "daemon": Backend(
        home="atoll.backends.daemon:DaemonClientSandbox",
        summary="a warm sandbox of the daemon that runs on this machine",
        optional=True,
    ),
    "pyodide": Backend(
        home="atoll.backends.pyodide:PyodideSandbox",
        summary="CPython as WebAssembly, in Deno",
        extra="pyodide",
        optional=True,
    ),
    "remote": Backend(
        home="atoll.backends.remote:RemoteSandbox",
        summary="a sandbox of `atoll serve`, on this machine or another",
        extra="remote",
        optional=True,
    ),
    "ray": Backend(
        home="atoll.fleet.client:RaySandbox",
        summary="a sandbox on a node of a fleet, placed by Ray",
        extra="ray",
        optional=True,
    ),
    "restricted": Backend(
        home="atoll.backends.restricted.sandbox:RestrictedSandbox",
        summary="a guard around CPython, in a jail where there is one: a seat belt, not a wall",
    ),
}

AUTO_ORDER = ("daemon", "native", "pyodide", "wasm", "restricted")
ANYWHERE = ("remote",)
"""Backends that need no Linux on this machine."""
AUTO_KERNEL = ("gvisor",)
"""For those who ask for this very level: a backend that is stronger has another Python."""


class BackendClass(Protocol):
    """What the table's classes have in common."""

    backend: str
    capabilities: frozenset[Capability]

    def __call__(self, config: SandboxConfig) -> BaseSandbox:
        """A sandbox of this backend, not yet started."""
        ...

    async def availability(self, config: SandboxConfig) -> Availability:
        """Whether the backend can run here."""
        ...


def names() -> tuple[str, ...]:
    """Every backend, in the table's order."""
    return tuple(BACKENDS)


def load(name: str) -> BackendClass:
    """The class of a backend; UnknownBackendError, or what to install for it."""
    if name not in BACKENDS:
        raise UnknownBackendError(name, BACKENDS)
    if not sys.platform.startswith("linux") and name not in ANYWHERE:
        hint = "Run `atoll serve` on a Linux machine and use backend='remote' (--url)."
        raise BackendUnavailableError(name, "it needs Linux", hint)
    module, _, attribute = BACKENDS[name].home.partition(":")
    try:
        result: Any = getattr(import_module(module), attribute)
    except ImportError as exc:
        hint = install_hint(BACKENDS[name].extra) if BACKENDS[name].extra else ""
        missing = isinstance(exc, ModuleNotFoundError) and exc.name
        reason = f"{missing} is not installed" if missing else str(exc)
        raise BackendUnavailableError(name, reason, hint) from exc
    return cast("BackendClass", result)


_NAMED = frozenset({Capability.PACKAGES, Capability.IMAGES, Capability.FOLDERS})
"""What a configuration asks for that a backend which was named has to refuse in words."""


async def choose(
    config: SandboxConfig, needed: frozenset[Capability] = frozenset()
) -> BackendClass:
    """Return the backend to use; `auto` takes the first that is strong enough, or fails."""
    if config.backend != "auto":
        return _named(config.backend, needed | (_wanted(config) & _NAMED))
    if config.python is not None and config.image is None:
        _check_python(config.python)
    least = Isolation.JAILED if config.min_isolation is None else config.min_isolation
    reasons = []
    for name in AUTO_KERNEL if least is Isolation.KERNEL else AUTO_ORDER:
        try:
            backend = load(name)
        except BackendUnavailableError as exc:
            reasons.append(str(exc))
            continue
        if lacking := (_wanted(config) | needed) - backend.capabilities:
            cannot = ", ".join(in_words(capability) for capability in sorted(lacking))
            reasons.append(f"{name}: it cannot {cannot}")
            continue
        availability = await backend.availability(config)
        if (
            availability.usable
            and availability.isolation is not None
            and availability.isolation >= least
        ):
            return backend
        have = str(availability.isolation) if availability.isolation is not None else "nothing"
        reasons.append(
            f"{name}: {availability.reason or f'offers {have}'}. {availability.hint}".strip()
        )
    listed = "".join(f"\n  {reason}" for reason in reasons)
    raise IsolationError("auto", f"no backend offers {least}:{listed}")


def _check_python(python: str) -> None:
    """Raise ConfigError if no file can be that interpreter: no backend would say it as plainly."""
    from atoll.launch import interpreter  # noqa: PLC0415 - only a named interpreter needs it

    try:
        interpreter.locate(python)
    except BackendUnavailableError as exc:
        raise ConfigError(f"{exc.reason}. {exc.hint}") from None


def _named(name: str, needed: frozenset[Capability]) -> BackendClass:
    backend = load(name)
    for lacking in sorted(needed - backend.capabilities):
        raise UnsupportedError(name, lacking)
    return backend


def _wanted(config: SandboxConfig) -> set[Capability]:
    """What a backend must be able to do for this configuration to mean anything."""
    wanted = set()
    if config.image is not None:
        wanted.add(Capability.IMAGES)
    elif config.python is not None:
        wanted.add(Capability.INTERPRETER)
    if config.workspace is not None or config.policy.mounts:
        wanted.add(Capability.HOST_FOLDER)
    if config.policy.folders:
        wanted.add(Capability.FOLDERS)
    if config.network is not None:
        wanted.add(Capability.NETWORK)
    if config.packages:
        wanted.add(Capability.PACKAGES)
    return wanted

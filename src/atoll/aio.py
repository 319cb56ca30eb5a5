"""The async face: `async with atoll.aio.create_sandbox() as box: ...`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

from atoll.factory import Opening, merge

if TYPE_CHECKING:
    from atoll.config import REPLConfig
    from atoll.factory import Options

_HOMES = {
    "LocalSandbox": "shell.local",
    "REPLEnvironment": "environment.core",
    "RLM": "rlm.core",
    "ShellSandbox": "shell.sandbox",
}
__all__ = ["create_sandbox", *_HOMES]  # noqa: PLE0604 - the keys are strings


def create_sandbox(config: REPLConfig | None = None, **options: Unpack[Options]) -> Opening:
    """A sandbox for async code: `await` it, or use it in `async with`."""
    return Opening(merge(config, options))


def __getattr__(name: str) -> Any:
    """Load a name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'atoll.aio' has no attribute {name!r}")
    return getattr(import_module(f"atoll.{_HOMES[name]}"), name)

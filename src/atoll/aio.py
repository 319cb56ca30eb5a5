"""The async API: `async with atoll.aio.create_sandbox() as box: ...`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

from atoll.factory import Opening, merge
from atoll.sandbox.context import warn_of_path

if TYPE_CHECKING:
    from atoll.agent.environment.core import REPLEnvironment
    from atoll.agent.rlm.core import RLM
    from atoll.backends.wasm.sandbox import PythonSandbox, run_untrusted_python
    from atoll.config import SandboxConfig
    from atoll.factory import SandboxOptions
    from atoll.shell.local import LocalSandbox
    from atoll.shell.sandbox import ShellSandbox

_HOMES = {
    "LocalSandbox": "shell.local",
    "PythonSandbox": "backends.wasm.sandbox",
    "REPLEnvironment": "agent.environment.core",
    "RLM": "agent.rlm.core",
    "ShellSandbox": "shell.sandbox",
    "run_untrusted_python": "backends.wasm.sandbox",
}
__all__ = [
    "RLM",
    "LocalSandbox",
    "PythonSandbox",
    "REPLEnvironment",
    "ShellSandbox",
    "create_sandbox",
    "run_untrusted_python",
]


def create_sandbox(
    config: SandboxConfig | None = None, **options: Unpack[SandboxOptions]
) -> Opening:
    """Open a sandbox for async code: `await` the result, or use it in `async with`."""
    settings: SandboxConfig = merge(config, options)
    warn_of_path(settings.context)
    return Opening(settings)


if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> Any:
        """Load a name from its module on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module 'atoll.aio' has no attribute {name!r}")
        return getattr(import_module(f"atoll.{_HOMES[name]}"), name)

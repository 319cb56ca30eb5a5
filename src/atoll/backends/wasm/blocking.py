"""PythonSandbox and run_untrusted_python for blocking code."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from atoll.backends.wasm import sandbox as asynchronous
from atoll.concurrency.portal import Portal
from atoll.sandbox.base import BaseSandbox
from atoll.sandbox.blocking import SyncSandbox

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from atoll.config import SandboxConfig
    from atoll.log import SandboxLogger
    from atoll.policy import ExecutionPolicy
    from atoll.types import SandboxResult


@BaseSandbox.register
class PythonSandbox(SyncSandbox):
    """CPython compiled to WebAssembly: the guest makes no system call on the host.

        box = atoll.PythonSandbox(policy, workspace, logger)
        result = box.execute("print('Hello')", inject_setup=False)

    The arguments, and all that it does, are those of `atoll.aio.PythonSandbox`. It counts as a
    BaseSandbox: it has that class's attributes and methods, as blocking ones. Without a
    call of destroy(), it ends when it is garbage-collected.
    """

    _inner: asynchronous.PythonSandbox

    def __init__(
        self,
        policy: SandboxConfig | ExecutionPolicy | Mapping[str, Any] | None = None,
        workspace: str | Path | None = None,
        logger: SandboxLogger | None = None,
        wasm_binary_path: str | Path | None = None,
        *,
        config: SandboxConfig | None = None,
    ) -> None:
        box = asynchronous.PythonSandbox(policy, workspace, logger, wasm_binary_path, config=config)
        super().__init__(box)
        # Callers that only execute need not know of destroy().
        weakref.finalize(self, _destroy, self._portal, box).atexit = False

    @property
    def policy(self) -> ExecutionPolicy:
        """The limits of the sandbox."""
        return self._inner.policy

    @property
    def workspace(self) -> Path | None:
        """The host folder that is the guest's /app; None for a private one."""
        return self._inner.workspace

    @property
    def logger(self) -> SandboxLogger:
        """The logger of its executions."""
        return self._inner.logger


def _destroy(portal: Portal, box: asynchronous.PythonSandbox) -> None:
    portal.start(box.destroy())


def run_untrusted_python(
    code: str, *, sandbox: PythonSandbox | None = None, **options: Any
) -> SandboxResult:
    """Run code in WebAssembly: in the session of `sandbox`, or in a fresh sandbox of its own.

    `options` are timeout_ms, key and inject_setup, as for execute(), and, for a fresh sandbox, the
    fields of SandboxConfig.
    """
    inner = None if sandbox is None else sandbox._inner  # noqa: SLF001 - the class above
    return Portal.shared().run(asynchronous.run_untrusted_python(code, sandbox=inner, **options))

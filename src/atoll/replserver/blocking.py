"""The executor for blocking code: the same methods, run in the shared event loop's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from atoll.concurrency.portal import Portal
from atoll.files.sync import blocking
from atoll.replserver.executor import REPLExecutor

if TYPE_CHECKING:
    from atoll.config import ReplSettings, SandboxConfig


class SyncREPLExecutor:
    """REPLExecutor without `await`. Use it in a `with` block, or call close()."""

    def __init__(
        self, config: SandboxConfig | None = None, *, settings: ReplSettings | None = None
    ) -> None:
        self._inner = REPLExecutor(config, settings=settings)
        self._run = Portal.shared().run

    @property
    def server_pid(self) -> int | None:
        """The process of the server, while one of ours runs."""
        return self._inner.server_pid

    start = blocking(REPLExecutor.start)
    execute = blocking(REPLExecutor.execute)
    health_check = blocking(REPLExecutor.health_check)
    close = blocking(REPLExecutor.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

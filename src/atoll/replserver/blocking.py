"""The executor for blocking code: the same methods, run in the shared event loop's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from atoll.replserver.executor import REPLExecutor
from atoll.sync import Portal

if TYPE_CHECKING:
    from atoll.config import ReplSettings, SandboxConfig
    from atoll.replserver.messages import REPLResponse


class SyncREPLExecutor:
    """REPLExecutor without `await`. Use it in a `with` block, or call close()."""

    def __init__(
        self, config: SandboxConfig | None = None, *, settings: ReplSettings | None = None
    ) -> None:
        self._executor = REPLExecutor(config, settings=settings)
        self._portal = Portal.shared()

    @property
    def server_pid(self) -> int | None:
        """The process of the server, while one of ours runs."""
        return self._executor.server_pid

    def start(self) -> None:
        """Start the server and wait until it is ready; execute() does so by itself."""
        self._portal.run(self._executor.start())

    def execute(
        self,
        code: str,
        state: bytes | None = None,
        *,
        capture_state: bool = False,
        timeout: float | None = None,
    ) -> REPLResponse:
        """Run code in a fresh sandbox. Its faults are in the response; a timeout raises."""
        return self._portal.run(
            self._executor.execute(code, state, capture_state=capture_state, timeout=timeout)
        )

    def health_check(self) -> bool:
        """Whether code runs within REPL_HEALTH_CHECK_TIMEOUT_SECONDS; a busy server is healthy."""
        return self._portal.run(self._executor.health_check())

    def close(self) -> None:
        """End the server and what runs in it. Calling it twice is harmless."""
        self._portal.run(self._executor.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

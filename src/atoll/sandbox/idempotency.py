"""Results by idempotency key: a retry gets the result of the first call, and runs nothing again."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.types import SandboxResult

KEPT = 256
MAX_KEY = 200


def check_key(key: object) -> None:
    """Raise ConfigError unless it is None, or a text of a length that a session keeps."""
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= MAX_KEY):
        raise ConfigError(f"a key is a text of 1 to {MAX_KEY} characters")


@dataclass(slots=True)
class KeyedResults:
    """The last results of one session. A second call while the first runs waits for it."""

    _known: dict[str, tuple[bytes, asyncio.Task[SandboxResult]]] = field(default_factory=dict)

    async def once(
        self, key: str | None, code: str, work: Callable[[], Awaitable[SandboxResult]]
    ) -> SandboxResult:
        """Return what `work` returned for this key, now or before; without a key it always runs.

        Raise ConfigError for a key that is not text, is too long, or was used with other code.
        """
        if key is None:
            return await work()
        check_key(key)
        digest = hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
        if key not in self._known:
            task = asyncio.ensure_future(_as_coroutine(work))
            self._known[key] = digest, task
            task.add_done_callback(lambda done: self._settle(key, done))
        known, task = self._known[key]
        if known != digest:
            raise ConfigError(f"the key {key!r} was used with other code: use another key for it")
        return await asyncio.shield(task)

    def _settle(self, key: str, task: asyncio.Task[SandboxResult]) -> None:
        """Keep a result; forget a failure, after which a retry has to run."""
        if task.cancelled() or task.exception() is not None:
            self._known.pop(key, None)
        while len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)))


async def _as_coroutine(work: Callable[[], Awaitable[SandboxResult]]) -> SandboxResult:
    return await work()

"""One request, one sandbox: opened for it or ahead of it, destroyed after it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from atoll.config import SandboxConfig
from atoll.errors import AtollError, StateError, UnsupportedError
from atoll.factory import open_sandbox
from atoll.replserver import messages, shapes
from atoll.replserver.messages import REPLResponse
from atoll.state.envelope import describe_state
from atoll.types import Outcome

if TYPE_CHECKING:
    from atoll.replserver.messages import REPLRequest
    from atoll.sandbox import BaseSandbox
    from atoll.types import SandboxResult

Opener = Callable[[SandboxConfig, str | None], Awaitable["BaseSandbox"]]
"""Makes a started sandbox; it is told the code that will run in it, if that is known."""

MAX_STATE_BYTES = 48 << 20
"""A larger state has no room in a frame."""
_STOPPED = (Outcome.TIMEOUT, Outcome.CPU, Outcome.CANCELLED)


class Runner:
    """Runs requests. With `prefetch` the next one's sandbox is opened while nobody waits."""

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        opener: Opener | None = None,
        prefetch: bool = False,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        self._config = config or SandboxConfig()
        self._opener, self._prefetch = opener or _open_any, prefetch
        self._max_state_bytes = max_state_bytes
        self._spare: asyncio.Task[BaseSandbox] | None = None

    async def warm_up(self) -> None:
        """Open a first sandbox before the server says that it is ready."""
        if not self._prefetch:
            await (await self._opener(self._config, None)).destroy()
            return
        self._refill()
        assert self._spare is not None
        await self._spare

    async def run(self, request: REPLRequest) -> REPLResponse:
        """The response to a request, whatever happens in its sandbox or to it."""
        try:
            box = await self._open(request)
        except StateError as exc:
            error = f"State restoration failed: {exc}"
            return REPLResponse.nothing_ran(messages.BAD_STATE, error)
        except AtollError as exc:
            return REPLResponse.nothing_ran(messages.FAILED, f"{type(exc).__name__}: {exc}")
        try:
            return await self._run_in(box, request)
        except AtollError as exc:
            return REPLResponse.nothing_ran(messages.FAILED, f"{type(exc).__name__}: {exc}")
        finally:
            await asyncio.shield(box.destroy())
            self._refill()

    async def close(self) -> None:
        """Destroy the sandbox that was opened ahead."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.cancel()
            with contextlib.suppress(asyncio.CancelledError, AtollError):
                await (await spare).destroy()

    async def _open(self, request: REPLRequest) -> BaseSandbox:
        spare = None
        if request.state is None:  # a state is restored as its sandbox starts
            spare, self._spare = self._spare, None
        if spare is not None:
            with contextlib.suppress(AtollError):  # it failed then, but may work now
                return await spare
        config = dataclasses.replace(self._config, state=request.state)
        return await self._opener(config, request.code)

    def _refill(self) -> None:
        if self._prefetch and self._spare is None:
            self._spare = asyncio.ensure_future(self._open_spare())
            self._spare.add_done_callback(_note_failure)

    async def _open_spare(self) -> BaseSandbox:
        return await self._opener(self._config, None)

    async def _run_in(self, box: BaseSandbox, request: REPLRequest) -> REPLResponse:
        limit = None if request.timeout is None else request.timeout * 1000
        result = await box.execute(request.code, timeout_ms=limit)
        response = _as_response(result)
        return await self._with_state(box, result, response) if request.capture_state else response

    async def _with_state(
        self, box: BaseSandbox, result: SandboxResult, response: REPLResponse
    ) -> REPLResponse:
        try:
            state = await self._save(box, result)
        except (StateError, UnsupportedError) as exc:
            error = f"State serialization failed: {exc}"
            return dataclasses.replace(response, state_error=error, error=response.error or error)
        return dataclasses.replace(response, state=state, left_out=left_out(state))

    async def _save(self, box: BaseSandbox, result: SandboxResult) -> bytes:
        if result.state_lost or result.kind in _STOPPED:
            raise StateError("the sandbox did not outlive the code")
        state = await box.save()
        if len(state) > self._max_state_bytes:
            raise StateError(
                f"the state has {len(state):,} bytes; the limit is {self._max_state_bytes:,}"
            )
        return state


async def _open_any(config: SandboxConfig, _code: str | None) -> BaseSandbox:
    return await open_sandbox(config)


def left_out(state: bytes) -> dict[str, str]:
    """The names that a saved state has no value of, and why; nothing if it does not tell."""
    try:
        return dict(describe_state(state).left_out)
    except StateError:
        return {}


def _as_response(result: SandboxResult) -> REPLResponse:
    error, stderr = shapes.error_and_stderr(result)
    return REPLResponse(
        stdout=result.stdout,
        stderr=stderr,
        exit_code=result.exit_code,
        files=result.files,
        error=error,
        kind=result.kind.value,
        displays=result.displays,
        duration_ms=result.duration_ms,
    )


def _note_failure(spare: asyncio.Task[BaseSandbox]) -> None:
    """Retrieve the exception, so that asyncio does not log it; the next request meets it."""
    if not spare.cancelled():
        spare.exception()

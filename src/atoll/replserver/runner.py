"""Runs each request in a fresh sandbox, which is destroyed after it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from atoll.config import SandboxConfig
from atoll.errors import AtollError, StateError, UnsupportedError
from atoll.factory import open_sandbox
from atoll.replserver import messages
from atoll.replserver.messages import REPLResponse
from atoll.state.envelope import describe_state
from atoll.types import Outcome

if TYPE_CHECKING:
    from atoll.hosting.pool import Pool
    from atoll.replserver.messages import REPLRequest
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import SandboxResult

Opener = Callable[[SandboxConfig, str | None], Awaitable["BaseSandbox"]]
"""Opens a sandbox; its second argument is the code that will run in it, if known."""

MAX_STATE_BYTES = 48 << 20
"""Largest state that fits into a frame."""
_FRAME = re.compile(r'^(\s*File )"<cell \d+>"(, line \d+)', re.MULTILINE)
_PLACE = re.compile(r" \(<cell \d+>, (line \d+)\)\Z")
_STOPPED = (Outcome.TIMEOUT, Outcome.CPU, Outcome.CANCELLED)


class Runner:
    """Runs requests, each in a fresh sandbox: of the pool, if there is one."""

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        opener: Opener | None = None,
        pool: Pool | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        self._config = config or SandboxConfig()
        self._pool = pool
        self._opener = opener or (_open_any if pool is None else pool.open)
        self._max_state_bytes = max_state_bytes

    async def warm_up(self) -> None:
        """Open a first sandbox before the server reports that it is ready."""
        await (await self._opener(self._config, None)).destroy()

    async def run(self, request: REPLRequest) -> REPLResponse:
        """Return the response to a request, whatever happens in its sandbox or to it."""
        config = dataclasses.replace(self._config, state=request.state)
        limit = None if request.timeout is None else request.timeout * 1000
        try:
            if self._pool is not None and not request.capture_state:
                result = await self._pool.run(
                    request.code, config, timeout_ms=limit, wait_for_end=True
                )
                return _as_response(result)
            return await self._run_and_save(request, config, limit)
        except StateError as exc:
            error = f"State restoration failed: {exc}"
            return REPLResponse.nothing_ran(messages.BAD_STATE, error)
        except AtollError as exc:
            return REPLResponse.nothing_ran(messages.FAILED, f"{type(exc).__name__}: {exc}")

    async def _run_and_save(
        self, request: REPLRequest, config: SandboxConfig, limit: float | None
    ) -> REPLResponse:
        box = await self._opener(config, request.code)
        try:
            result = await box.execute(request.code, timeout_ms=limit)
            response = _as_response(result)
            if not request.capture_state:
                return response
            return await self._with_state(box, result, response)
        finally:
            await asyncio.shield(box.destroy())

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
    """Return the names of variables that are not in a state, and why; {} if unknown."""
    try:
        return dict(describe_state(state).left_out)
    except StateError:
        return {}


def _as_response(result: SandboxResult) -> REPLResponse:
    error, stderr = _error_and_stderr(result)
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


def _error_and_stderr(result: SandboxResult) -> tuple[str | None, str]:
    """Return the result's error and stderr as clients match them: the file is "<string>".

    A SyntaxError of the code itself is one line.
    """
    error = result.error
    place = _PLACE.search(error) if error else None
    if error is None or place is None:
        return error, _FRAME.sub(r'\1"<string>"\2', result.stderr)
    error = error[: place.start()]
    if result.stderr.startswith("Traceback"):  # raised while code ran, for example by compile()
        return error, _FRAME.sub(r'\1"<string>"\2', result.stderr)
    return error, f"{error} ({place[1]})"

"""run_python, a tool for any agent framework; each framework's integration wraps it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from atoll.errors import ConfigError, IsolationError
from atoll.policy import Isolation
from atoll.types import stderr_with_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from atoll.config import OutputCallback
    from atoll.sandbox.blocking import SyncSandbox
    from atoll.types import SandboxResult

NAME = "run_python"
DESCRIPTION = (
    "Run Python code in an isolated sandbox. Variables, imports and files persist between calls. "
    "Returns what the code prints, the value of its last line, and the traceback if it fails."
)
ANSWER = "answer"
"""Marks the last item of PythonTool.stream."""
LONGEST = 20_000
"""Characters of one answer; the middle of a longer one is left out, and the answer says so."""
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code to run"}},
    "required": ["code"],
    "additionalProperties": False,
}


class LiveOutput:
    """Passes output, while code runs, to the tool call that runs it.

    live = LiveOutput(); box = create_sandbox(on_output=live); as_tool(box, live=live)
    """

    def __init__(self) -> None:
        self._on_output: OutputCallback | None = None
        self._turn = asyncio.Lock()

    def __call__(self, stream: str, text: str) -> None:
        """Take a piece of output from the sandbox."""
        if self._on_output is not None:
            self._on_output(stream, text)

    @contextlib.asynccontextmanager
    async def passed_to(self, on_output: OutputCallback | None) -> AsyncIterator[None]:
        """Call `on_output` with the output until the block ends; parallel calls take turns."""
        async with self._turn:
            self._on_output = on_output
            try:
                yield
            finally:
                self._on_output = None


class PythonTool:
    """Runs code of a model in a sandbox, which its owner destroys.

    IsolationError if the sandbox is weaker than `min_isolation`.
    """

    def __init__(
        self,
        box: SyncSandbox,
        *,
        name: str = NAME,
        description: str = DESCRIPTION,
        min_isolation: Isolation | str = Isolation.JAILED,
        live: LiveOutput | None = None,
    ) -> None:
        least = Isolation.parse(min_isolation)
        if not name.isidentifier():
            raise ConfigError(f"a tool's name must be a Python name, not {name!r:.60}")
        if box.isolation < least:
            raise IsolationError(box.backend, f"{least} was asked for; it offers {box.isolation}")
        self._box, self.name, self.description = box, name, description
        self._live = live or LiveOutput()
        self.streams = live is not None
        """Whether output can be passed on while code runs."""

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._box.isolation

    def run(self, code: str, on_output: OutputCallback | None = None) -> str:
        """Run code and return its output for a model; `on_output` gets it while the code runs."""
        return self._box.portal.run(self._execute(code, on_output))

    async def arun(self, code: str, on_output: OutputCallback | None = None) -> str:
        """As run, for any event loop; the code is interrupted if the caller is cancelled."""
        return await self._box.portal.run_from_loop(self._execute(code, on_output))

    async def stream(self, code: str) -> AsyncGenerator[tuple[str, str], None]:
        """Yield output as (stream, text) while the code runs, and at last (ANSWER, answer)."""
        pieces: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def hand_over(stream: str, text: str) -> None:  # called in the thread of Atoll's loop
            loop.call_soon_threadsafe(pieces.put_nowait, (stream, text))

        def finish(_task: object) -> None:
            pieces.put_nowait((ANSWER, ""))

        running = asyncio.ensure_future(self.arun(code, hand_over))
        running.add_done_callback(finish)
        try:
            while (piece := await pieces.get())[0] != ANSWER:
                yield piece
            yield ANSWER, await running
        finally:
            running.cancel()

    async def _execute(self, code: str, on_output: OutputCallback | None) -> str:
        async with self._live.passed_to(on_output):
            return text_of(await self._box.inner.execute(code))


def text_of(result: SandboxResult) -> str:
    """Return a result as text for a model: output, last value, traceback."""
    stderr = stderr_with_error(result.stderr.strip(), result.error, result.kind)
    error = "" if result.success else stderr or result.kind.value
    parts = (result.stdout.rstrip("\n"), result.value_repr or "", error)
    text = "\n".join(part for part in parts if part) or "(no output)"
    if result.state_lost:
        text += "\nThe variables of earlier calls are lost."
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n... [{len(text) - LONGEST:,} characters left out] ...\n{text[-half:]}"

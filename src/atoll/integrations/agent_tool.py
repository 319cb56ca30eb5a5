"""run_python, a tool for any agent framework; each framework's integration wraps it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.errors import ConfigError, IsolationError
from atoll.policy import Isolation
from atoll.types import stderr_with_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from atoll.config import OutputCallback
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.blocking import SyncSandbox
    from atoll.types import Display, SandboxResult

NAME = "run_python"
DESCRIPTION = (
    "Run Python code in an isolated sandbox. Variables, imports and files persist between calls. "
    "Returns what the code prints, the value of its last line, its figures, the names of the files "
    "that it writes, and the traceback if it fails. Read and write files in the current folder. "
    "A variable `context`, if there is one, is the text to work on: explore it by code, and print "
    "only what you need."
)
LONGEST = 20_000
"""Characters of one answer; the middle of a longer one is left out, and the answer says so."""
MAX_NAMED = 20
"""Files that an answer names."""
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_FILE_BYTES, MAX_FILES_BYTES = 4 << 20, 16 << 20
"""Bytes of one file, and of all files of a call, that are returned with their content."""
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code to run"}},
    "required": ["code"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that code created or changed."""

    path: str
    size: int
    media_type: str
    content: bytes | None
    """None if the file, or all of them together, are too large: read it from the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one call returns to a model, and to the program around it."""

    text: str
    """Output, last value, traceback, and the names of files, shortened."""
    failed: bool = False
    images: tuple[Display, ...] = ()
    files: tuple[WrittenFile, ...] = ()

    def __str__(self) -> str:
        return self.text


class CodeFailedError(Exception):
    """Code that failed, for frameworks that learn so by an exception; its text is the answer's."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


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

    IsolationError if the sandbox is weaker than `min_isolation`. `on_answer` is called with each
    Answer, in any thread: it has the figures and files that a framework may have no place for.
    """

    def __init__(
        self,
        box: SyncSandbox,
        *,
        name: str = NAME,
        description: str | None = None,
        min_isolation: Isolation | str = Isolation.JAILED,
        live: LiveOutput | None = None,
        on_answer: Callable[[Answer], object] | None = None,
    ) -> None:
        least = Isolation.parse(min_isolation)
        if not name.isidentifier():
            raise ConfigError(f"a tool's name must be a Python name, not {name!r:.60}")
        if box.isolation < least:
            raise IsolationError(box.backend, f"{least} was asked for; it offers {box.isolation}")
        self._box, self.name, self._on_answer = box, name, on_answer
        self.description = f"{DESCRIPTION} {_limits(box)}" if description is None else description
        self._live = live or LiveOutput()
        self.streams = live is not None
        """Whether output can be passed on while code runs."""

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._box.isolation

    def run(self, code: str, on_output: OutputCallback | None = None) -> Answer:
        """Run code and return its answer; `on_output` gets output while the code runs."""
        return self._box.portal.run(self._execute(code, on_output))

    async def arun(self, code: str, on_output: OutputCallback | None = None) -> Answer:
        """As run, for any event loop; the code is interrupted if the caller is cancelled."""
        return await self._box.portal.run_from_loop(self._execute(code, on_output))

    async def stream(self, code: str) -> AsyncGenerator[tuple[str, str] | Answer, None]:
        """Yield output as (stream, text) while the code runs, and at last the answer."""
        pieces: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def hand_over(stream: str, text: str) -> None:  # called in the thread of Atoll's loop
            loop.call_soon_threadsafe(pieces.put_nowait, (stream, text))

        running = asyncio.ensure_future(self.arun(code, hand_over))
        running.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            yield await running
        finally:
            running.cancel()

    async def _execute(self, code: str, on_output: OutputCallback | None) -> Answer:
        box = self._box.inner
        async with self._live.passed_to(on_output):
            result = await box.execute(code)
            files = await _files(box, result)
        answer = Answer(
            text=text_of(result),
            failed=not result.success,
            images=tuple(image for image in result.displays if image.media_type in IMAGES),
            files=files,
        )
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer


async def _files(box: BaseSandbox, result: SandboxResult) -> tuple[WrittenFile, ...]:
    """Return the files that code wrote, with their content as far as the limits allow."""
    left, wanted = MAX_FILES_BYTES, []
    for artifact in result.artifacts:
        if artifact.size <= min(MAX_FILE_BYTES, left):
            left -= artifact.size
            wanted.append(artifact.path)
    got = {}
    if wanted:
        downloaded = await box.files.download(wanted)
        got = {path: file.content for path, file in zip(wanted, downloaded, strict=True)}
    return tuple(
        WrittenFile(
            path=artifact.path,
            size=artifact.size,
            media_type=artifact.media_type,
            content=got.get(artifact.path),
        )
        for artifact in result.artifacts
    )


def text_of(result: SandboxResult) -> str:
    """Return a result as text for a model: output, last value, traceback, files, figures."""
    stderr = stderr_with_error(result.stderr.strip(), result.error, result.kind)
    error = "" if result.success else stderr or result.kind.value
    parts = (result.stdout.rstrip("\n"), result.value_repr or "", error)
    text = _shortened("\n".join(part for part in parts if part))
    notes = [
        f"[wrote {artifact.path}, {artifact.size:,} bytes]"
        for artifact in result.artifacts[:MAX_NAMED]
    ]
    if len(result.artifacts) > MAX_NAMED:
        notes.append(f"[wrote {len(result.artifacts):,} files in all]")
    if images := sum(display.media_type in IMAGES for display in result.displays):
        notes.append(f"[figures: {images}]")
    if result.state_lost:
        notes.append("The variables of earlier calls are lost.")
    return "\n".join(part for part in (text, *notes) if part) or "(no output)"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n... [{len(text) - LONGEST:,} characters left out] ...\n{text[-half:]}"


def _limits(box: SyncSandbox) -> str:
    """Return the limits that a model should know of."""
    policy = box.inner.policy
    known = {"memory": policy.memory_bytes, "files": policy.disk_bytes}
    shown = [f"{size >> 20:,} MB of {what}" for what, size in known.items() if size is not None]
    return f"Limits: {', '.join(shown)}." if shown else ""

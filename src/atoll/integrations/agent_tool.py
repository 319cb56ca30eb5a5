"""run_python, a tool for any agent framework: the integrations of frameworks wrap it in theirs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError, IsolationError
from atoll.policy import Isolation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.config import OutputCallback
    from atoll.sync import SyncSandbox
    from atoll.types import SandboxResult

NAME = "run_python"
DESCRIPTION = (
    "Run Python code in an isolated sandbox. Variables, imports and files persist between calls. "
    "Returns what the code prints, the value of its last line, and the traceback if it fails."
)
LONGEST = 20_000
"""Characters of one answer; the middle of a longer one is left out, and the answer says so."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code to run"}},
    "required": ["code"],
    "additionalProperties": False,
}


class LiveOutput:
    """Passes what code prints, as it comes, to the call of the tool that runs it.

    live = LiveOutput(); box = create_sandbox(on_output=live); as_tool(box, live=live)
    """

    def __init__(self) -> None:
        self._hear: OutputCallback | None = None

    def __call__(self, stream: str, text: str) -> None:
        """Take a piece of output from the sandbox."""
        if self._hear is not None:
            self._hear(stream, text)

    @contextlib.contextmanager
    def told_to(self, hear: OutputCallback | None) -> Iterator[None]:
        """Call `hear` with the output until the block ends."""
        self._hear = hear
        try:
            yield
        finally:
            self._hear = None


class PythonTool:
    """Runs code of a model in a sandbox, which stays its owner's to destroy.

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

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._box.isolation

    def run(self, code: str, hear: OutputCallback | None = None) -> str:
        """Run code and return what a model should see of it; `hear` is told the live output."""
        with self._live.told_to(hear):
            return text_of(self._box.execute(code))

    async def arun(self, code: str, hear: OutputCallback | None = None) -> str:
        """As run, for any event loop; the code is interrupted if the caller is cancelled."""
        with self._live.told_to(hear):
            return text_of(await self._box.portal.bring(self._box.inner.execute(code)))


def text_of(result: SandboxResult) -> str:
    """Return a result as text for a model: output, last value, traceback."""
    error = "" if result.success else result.stderr.strip() or result.error or result.kind.value
    parts = (result.stdout.rstrip("\n"), result.value_repr or "", error)
    text = "\n".join(part for part in parts if part) or "(no output)"
    if result.state_lost:
        text += "\nThe variables of earlier calls are lost."
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n... [{len(text) - LONGEST:,} characters left out] ...\n{text[-half:]}"

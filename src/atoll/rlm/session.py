"""Several questions over one context, in one sandbox: it is read once, and its variables stay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from atoll.errors import SandboxClosedError
from atoll.rlm.context_sources import read_context
from atoll.rlm.live import LiveEnvironment
from atoll.text.quoting import quoted

if TYPE_CHECKING:
    from atoll.rlm.context_sources import ContextSource
    from atoll.rlm.core import RLM
    from atoll.rlm.types import Answer

REMEMBERED, LONGEST = 5, 2_000
"""Earlier questions that the model is told of, and characters of each with its answer."""


CLOSED = (
    "the session is closed: close() was called, or its `with` block, or its RLM's, has ended. "
    "Open another one: rlm.session(context)"
)


class Session:
    """Questions in turn over one context; each is a run with a budget of its own.

    They share one sandbox, so that a question finds the variables of the ones before it. Use it in
    `async with`, or call close().
    """

    def __init__(self, rlm: RLM, context: Any) -> None:
        self._rlm, self._context = rlm, context
        self._source: ContextSource | None = None
        self._live = LiveEnvironment()
        self._earlier: list[str] = []
        self._turn, self._closed = asyncio.Lock(), False

    async def ask(self, question: str) -> Answer:
        """Return the answer to a question, which may refer to earlier ones: "and when?"."""
        async with self._turn:
            if self._closed:
                raise SandboxClosedError(CLOSED)
            if self._source is None:
                self._source = await asyncio.to_thread(read_context, self._context)
            asked = self._with_earlier(question)
            answer = await self._rlm.ask_in(self._live, asked, self._source)
            said = answer.text or f"(no answer: {answer.reason})"
            self._earlier.append(f"Question: {question}\nAnswer: {said}"[:LONGEST])
            return answer

    async def close(self) -> None:
        """End the sandbox; a later question is a SandboxClosedError."""
        async with self._turn:
            self._closed = True
            await self._live.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def _with_earlier(self, question: str) -> str:
        if not self._earlier:
            return question
        told = quoted("earlier", "\n\n".join(self._earlier[-REMEMBERED:]))
        return f"{question}\n\nBefore this question there were:\n{told}"

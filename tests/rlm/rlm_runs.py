"""Runs with scripted models, for the tests of the recursive loop."""

from __future__ import annotations

import asyncio
from typing import Any

from atoll.agent.rlm.core import RLM
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.rlm.models.types import Completion, Usage
from atoll.agent.rlm.prompts import EXAMPLE
from atoll.agent.trajectory import events

TEXT = "".join(f"entry {n}: value {n * n}\n" for n in range(400))
DONE = "FINAL('done')"


def cell(*codes: str) -> str:
    """A reply with these cells in it."""
    return "\n".join(f"```python\n{code}\n```" for code in codes)


def script(*replies: Any, **options: Any) -> ScriptedModel:
    """A model that gives these; a text that is code is given as a cell."""
    return ScriptedModel(replies, **options)


def cut(text: str, tokens: int = 400) -> Completion:
    """A reply that the provider cut off at so many tokens."""
    usage = Usage(input_tokens=10, output_tokens=tokens)
    return Completion(text=text, usage=usage, finish="length")


def echo(**options: Any) -> ScriptedModel:
    """A model that says what it was asked last."""
    return ScriptedModel([lambda messages: messages[-1].content], forever=True, **options)


async def ask(model: ScriptedModel, context: Any = TEXT, **settings: Any) -> Any:
    """The answer of a run in the native backend, which explores even a short context."""
    rlm = RLM(model, **{"backend": "native", "direct_tokens": 1, **settings})
    return await rlm.completion("What is it?", context)


def first_message(messages: Any) -> str:
    """The question with what is known of the context: after the example, before the first turn."""
    return str(messages[1 + len(EXAMPLE)].content)


def told(source: Any, kind: type[events.Event]) -> list[Any]:
    """The events of one kind that an answer, or a list, has."""
    return [one for one in getattr(source, "trajectory", source) if isinstance(one, kind)]


class Counters(ScriptedModel):
    """A model that knows how many of its calls were under way at the same time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.now, self.most, self.cancelled = 0, 0, 0

    async def complete(self, *args: Any, **options: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().complete(*args, **options)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1

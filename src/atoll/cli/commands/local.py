"""Run the local model for the length of one question; ask uses it for `--model local`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from atoll.agent.rlm.models.local import server
from atoll.agent.rlm.models.local.weights import Store
from atoll.agent.rlm.models.resolve import resolve

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from atoll.agent.rlm.models.types import Completion, Message, Model, OnText, Usage
    from atoll.cli.terminal.progress import Progress

SETTINGS = {"window": server.WINDOW, "temperature": 0.0, "max_tokens": 400, "budget_seconds": 1800}
"""Options for a small and slow model, where the command line does not set them."""


@contextlib.contextmanager
def local_model(args: Namespace, progress: Progress | None) -> Iterator[Model]:
    """Start the server, yield the model, end the server with the block."""
    for name, value in SETTINGS.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    store = Store()

    def wait() -> None:
        if progress is not None:
            progress.tick("loading the local model")

    try:
        with server.running(store.path, window=args.window, on_wait=wait) as served:
            model = resolve(f"local/{store.weights.name}", base_url=served.url)
            yield model if progress is None else Streamed(model, progress.type)
    finally:
        if progress is not None:
            progress.end()


class Streamed:
    """A Model that streams its replies, so that each token can be counted as it comes."""

    def __init__(self, model: Model, on_text: OnText) -> None:
        self._model, self._on_text = model, on_text

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        on_text: OnText | None = None,
    ) -> Completion:
        """Return the answer of the model."""
        return await self._model.complete(
            messages,
            max_tokens=max_tokens,
            temperature=temperature,
            stop=stop,
            on_text=on_text or self._on_text,
        )

    def would_cost(self, usage: Usage) -> float | None:
        """Return what the model says."""
        return self._model.would_cost(usage)

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()

"""The local model as a Model: its server is started with the first question, and ended by close."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.extras import install_command
from atoll.rlm.models.local import server
from atoll.rlm.models.local.weights import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.rlm.models.types import Completion, Message, Model, Usage


class LocalModel:
    """The model that `atoll model get` downloads; `connect` makes a Model of a name and a URL."""

    def __init__(self, connect: Callable[[str, str], Model]) -> None:
        self._store, self._connect = Store(), connect
        self.name = f"local/{self._store.weights.name}"
        if not self._store.complete:
            raise ConfigError("the local model is not downloaded. Type: atoll model get")
        if not server.is_installed():
            lacks, install = server.LIBRARY, install_command("localllm", "llm")
            raise ConfigError(f"the local model needs {lacks}. Type: {install}")
        self._held = contextlib.ExitStack()
        self._model: Model | None = None
        self._starting = threading.Lock()

    async def complete(self, messages: Sequence[Message], **options: Any) -> Completion:
        """Return the answer of the model; the first call waits until it is loaded."""
        model = await asyncio.to_thread(self._start)
        return await model.complete(messages, **options)

    def would_cost(self, usage: Usage) -> float | None:  # noqa: ARG002 - it is free
        """Return 0: it runs on this machine."""
        return 0.0

    async def close(self) -> None:
        """End the server."""
        model, self._model = self._model, None
        if model is not None:
            await model.close()
        await asyncio.to_thread(self._end)

    def _start(self) -> Model:
        with self._starting:
            if self._model is None:
                served = self._held.enter_context(server.running(self._store.path))
                self._model = self._connect(self.name, served.url)
            return self._model

    def _end(self) -> None:
        with self._starting:
            self._held.close()

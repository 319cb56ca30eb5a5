"""The local model: a server of it on loopback, and the Model that starts and ends one.

    python -m atoll.agent.rlm.models.local.server WEIGHTS [--port N] [--window N] [--threads N]

The process prints its address and serves until it gets SIGTERM or its parent ends. OpenAI's API is
at /v1/chat/completions below that address, Anthropic's at /v1/messages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.agent.rlm.models.local.weights import Store
from atoll.concurrency import forks
from atoll.errors import ConfigError, ModelUnavailableError
from atoll.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from atoll.agent.rlm.models.types import Completion, Message, Model, Usage

LIBRARY = "xllamacpp"
WINDOW = 8_192
"""Tokens of one conversation."""
PARALLEL = 2
"""Conversations at the same time."""
START_SECONDS = 300.0
POLL_SECONDS = 0.25
END_SECONDS = 5.0
ENDED = {signal.SIGTERM, signal.SIGINT}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the weights that the command line names."""
    parser = argparse.ArgumentParser(description="Serve a local language model on loopback.")
    parser.add_argument("weights", type=Path, metavar="WEIGHTS", help="a GGUF file")
    add_options(parser)
    args = parser.parse_args(argv)
    serve(args.weights, args.port, args.threads, args.window)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how to serve."""
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--window", type=int, default=WINDOW, help="tokens of one conversation")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)


def is_installed() -> bool:
    """Return whether the library that runs the model can be imported."""
    return importlib.util.find_spec(LIBRARY) is not None


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs: its base URL and its process."""

    url: str
    pid: int


@contextlib.contextmanager
def running(
    weights: Path, *, window: int = WINDOW, on_wait: Callable[[], None] = lambda: None
) -> Iterator[Served]:
    """Start the server as a child process, yield it, and end it with the block.

    `on_wait` is called several times a second until the model is loaded.
    """
    command = [sys.executable, "-m", __name__, str(weights), "--window", str(window)]
    with tempfile.TemporaryFile() as errors:
        # A session of its own: Ctrl-C goes to this process, which then ends the server.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            if not (address := _address(process, on_wait)):
                raise _not_started(process, errors)
            yield Served(f"{address}/v1", process.pid)
        finally:
            _end(process)


class LocalModel:
    """The model that `atoll model get` downloads; `connect` makes a Model of a name and a URL."""

    def __init__(self, connect: Callable[[str, str], Model]) -> None:
        self._store, self._connect = Store(), connect
        self.name = f"local/{self._store.weights.name}"
        if not self._store.complete:
            raise ConfigError("the local model is not downloaded. Type: atoll model get")
        if not is_installed():
            lacks, install = LIBRARY, install_command("localllm", "llm")
            raise ConfigError(f"the local model needs {lacks}. Type: {install}")
        self._held = contextlib.ExitStack()
        self._model: Model | None = None
        self._starting = forks.new_lock()

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
                served = self._held.enter_context(running(self._store.path))
                self._model = self._connect(self.name, served.url)
            return self._model

    def _end(self) -> None:
        with self._starting:
            self._held.close()


def serve(weights: Path, port: int, threads: int, window: int) -> None:
    """Serve until SIGTERM, SIGINT, or the end of the parent process."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDED)  # before any thread: they inherit it
    server = start(weights, port, threads, window)
    print(server.listening_address, flush=True)  # noqa: T201 - what the parent waits for
    while os.getppid() == parent and signal.sigtimedwait(ENDED, 0.5) is None:
        pass
    os._exit(0)  # there is nothing to save, and its threads need not finish their sentence


def start(weights: Path, port: int, threads: int, window: int) -> Any:
    """Load the model and listen; llama.cpp does both in threads of its own."""
    # Read when the library is loaded: threads that wait must not take the cores from others.
    os.environ.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0")
    import xllamacpp  # noqa: PLC0415 - 33 MB that only a server needs

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {"qwen2.5-coder-1.5b"}
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel = window * PARALLEL, PARALLEL
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.ui, params.verbosity = False, 1
    params.cors_origins = "http://127.0.0.1"  # not every page that a browser has open
    return xllamacpp.Server(params)


def _address(process: subprocess.Popen[bytes], on_wait: Callable[[], None]) -> str:
    """Return the line that the server prints when it listens; empty if it ended or took too long.

    The line is short and written at once, so that one read gets all of it.
    """
    assert process.stdout is not None
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        on_wait()
        if select.select([process.stdout], [], [], POLL_SECONDS)[0]:
            return process.stdout.readline().decode().strip()
    return ""


def _not_started(process: subprocess.Popen[bytes], errors: Any) -> ModelUnavailableError:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)  # its stdout is closed: it is about to end, with its exit code
    _end(process)
    errors.seek(0)
    said = errors.read().decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "it printed nothing")
    return ModelUnavailableError(
        f"the local model did not start (exit code {process.returncode}): {last}. It needs 2 GB of "
        "free memory; if the file of weights is damaged, type: atoll model remove; atoll model get"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the server: it has nothing to save, and while it loads it does not heed SIGTERM."""
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


if __name__ == "__main__":
    sys.exit(main())

"""Ways to answer a task with one model and one budget: Atoll, the bare model, and `rlms`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atoll
from atoll.agent.rlm.models.resolve import resolve
from atoll.agent.rlm.models.types import Message
from atoll.agent.trajectory.events import ModelAnswered
from atoll.errors import ModelError
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.agent.rlm.models.resolve import AnyModel
    from atoll.agent.rlm.models.types import Completion, Model
    from evals.benchmarks import AnyTask

SHARES = (0.75, 0.65, 0.5, 0.4)
"""Of a window that the bare model is given in text. Token counts are estimates, a third too low for
these texts, and the reply needs room. A text that its server refuses as too long is cut more."""
TOO_LONG = "context_length_exceeded"
ANSWERED, UNANSWERED = "answered", "unanswered"
PEER = Path(__file__).with_name("peer.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every arm has in common."""

    model: AnyModel
    base_url: str | None = None
    window: int = 8_192
    max_tokens: int = 400
    calls: int = 12
    seconds: float = 3600.0
    cpu_seconds: float | None = None
    """CPU time of the model's server for one task; a task that takes more is stopped."""
    temperature: float | None = 0.0
    backend: str = "auto"
    server: int | None = None
    """The process of the model's server, if its CPU time is to be counted."""

    @property
    def facts(self) -> dict[str, Any]:
        """What has to be the same for answers to be comparable."""
        names = ("window", "max_tokens", "calls", "seconds", "cpu_seconds", "temperature")
        return {"model": str(self.model), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True)
class Said:
    """What an arm answered, and how it ended."""

    text: str
    ended: str = ANSWERED
    reason: str = ""


@dataclass(slots=True)
class Spent:
    """Tokens and calls of one task; counted call by call, so that a stopped task has them too."""

    tokens: int = 0
    calls: int = 0

    def add(self, tokens: int) -> None:
        """Count one call."""
        self.tokens += tokens
        self.calls += 1


async def ask_atoll(task: AnyTask, setup: Setup, spent: Spent, strategy: str = "auto") -> Said:
    """Ask through `atoll.RLM`."""
    limits = atoll.Budget(calls=setup.calls, seconds=setup.seconds, iterations=setup.calls)

    def count(event: object) -> None:
        if isinstance(event, ModelAnswered):
            spent.add(event.usage.input + event.usage.output)

    with tempfile.TemporaryDirectory() as folder:
        async with atoll.aio.RLM(
            resolve(setup.model, base_url=setup.base_url, timeout_seconds=setup.seconds),
            window=setup.window,
            max_tokens=setup.max_tokens,
            temperature=setup.temperature,
            budget=limits,
            strategy=strategy,
            backend=setup.backend,
            on_event=count,
        ) as rlm:
            answer = await rlm.completion(task.question, _context(task, Path(folder)))
    return Said(answer.text, answer.ended.value, answer.reason)


async def ask_bare(task: AnyTask, setup: Setup, spent: Spent) -> Said:
    """Ask the model itself, with as much of the text, from its beginning, as its window takes."""
    model = resolve(setup.model, base_url=setup.base_url, timeout_seconds=setup.seconds)
    try:
        said = await _fitted(model, task, setup)
    finally:
        await model.close()
    spent.add(said.usage.input_tokens + said.usage.output_tokens)
    return Said(said.text)


async def _fitted(model: Model, task: AnyTask, setup: Setup) -> Completion:
    """Ask with the largest share of the window that the server takes."""
    for share in SHARES:
        text = fitting(task.whole, int((setup.window - setup.max_tokens) * share))
        asked = f"{text}\n\nQuestion about the text above: {task.question}"
        try:
            return await model.complete(
                [Message("user", asked)],
                max_tokens=setup.max_tokens,
                temperature=setup.temperature,
            )
        except ModelError as exc:
            if TOO_LONG not in str(exc) or share == SHARES[-1]:
                raise
    raise AssertionError("the last share returns or raises")


async def ask_peer(task: AnyTask, setup: Setup, spent: Spent) -> Said:
    """Ask through `rlms`, in a process of its own: it runs the model's code without isolation."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = {
            "question": task.question,
            "model": str(setup.model).partition("/")[2],
            "base_url": setup.base_url,
            "calls": setup.calls,
            "seconds": setup.seconds,
            "sampling": {"temperature": setup.temperature, "max_tokens": setup.max_tokens},
        }
        (folder / "context.txt").write_text(task.whole)
        (folder / "given.json").write_text(json.dumps(given))
        try:
            errors = await _run(PEER, folder)
        finally:
            used = folder / "used.txt"
            for tokens in used.read_text().split() if used.exists() else ():
                spent.add(int(tokens))
        found = folder / "answer.json"
        if not found.exists():
            return Said("", UNANSWERED, errors.strip()[-200:])
        return Said(**json.loads(found.read_text()))


async def _run(program: Path, folder: Path) -> str:
    """Run a Python program in a folder and return its stderr; kill it if this is cancelled."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        cwd=folder,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return errors.decode(errors="replace")


ARMS: dict[str, Callable[[AnyTask, Setup, Spent], Awaitable[Said]]] = {
    "atoll": ask_atoll,
    "explore": partial(ask_atoll, strategy="explore"),
    "bare": ask_bare,
    "rlms": ask_peer,
}


def fitting(text: str, tokens: int) -> str:
    """Return the beginning of a text that has at most so many tokens, by the estimate."""
    text = text[: tokens * 8]
    while text and (counted := estimate(text)) > tokens:
        text = text[: int(len(text) * min(0.98, tokens / counted))]
    return text


def _context(task: AnyTask, folder: Path) -> str | Path:
    """Return the text, or the folder that the source tree was written to."""
    if not task.files:
        return task.text
    for name, text in task.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder

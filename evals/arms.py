"""Ways to answer a task with one model and one budget: Atoll, the bare model, and `rlms`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atoll
from atoll.errors import AtollError, ModelError
from atoll.rlm.models.resolve import resolve
from atoll.rlm.models.types import Message
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.rlm.models.resolve import AnyModel
    from atoll.rlm.models.types import Completion, Model
    from evals.tasks import Task

SHARES = (0.8, 0.65, 0.5, 0.4)
"""Of a window that the bare model is given in text: token counts are estimates, so a text that its
server refuses as too long is cut further."""
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
    temperature: float | None = 0.0
    backend: str = "auto"
    server: int | None = None
    """The process of the model's server, if its CPU time is to be counted."""

    @property
    def facts(self) -> dict[str, Any]:
        """What has to be the same for answers to be comparable."""
        names = ("window", "max_tokens", "calls", "seconds", "temperature")
        return {"model": str(self.model), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One answer and what it took."""

    said: str
    ended: str
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the model's server: it does not depend on what else the machine does."""
    reason: str = ""


def ask_atoll(task: Task, setup: Setup) -> Result:
    """Ask through `atoll.RLM`."""
    limits = atoll.Budget(calls=setup.calls, seconds=setup.seconds, iterations=setup.calls)
    with tempfile.TemporaryDirectory() as folder:
        rlm = atoll.RLM(
            setup.model,
            base_url=setup.base_url,
            window=setup.window,
            max_tokens=setup.max_tokens,
            temperature=setup.temperature,
            budget=limits,
            backend=setup.backend,
        )
        answer = rlm.completion(task.question, _context(task, Path(folder)))
    return Result(
        said=answer.text,
        ended=answer.ended.value,
        tokens=answer.usage.input_tokens + answer.usage.output_tokens,
        calls=answer.calls,
        seconds=answer.seconds,
        reason=answer.reason,
    )


def ask_bare(task: Task, setup: Setup) -> Result:
    """Ask the model itself, with as much of the text, from its beginning, as its window takes."""
    return asyncio.run(_ask_bare(task, setup))


async def _ask_bare(task: Task, setup: Setup) -> Result:
    model = resolve(setup.model, base_url=setup.base_url, timeout_seconds=setup.seconds)
    begun = time.monotonic()
    try:
        async with asyncio.timeout(setup.seconds):
            said = await _fitted(model, task, setup)
    except TimeoutError:
        seconds = time.monotonic() - begun
        return Result(said="", ended=UNANSWERED, calls=1, seconds=seconds, reason="out of time")
    finally:
        await model.close()
    used = said.usage.input_tokens + said.usage.output_tokens
    seconds = time.monotonic() - begun
    return Result(said=said.text, ended=ANSWERED, tokens=used, calls=1, seconds=seconds)


async def _fitted(model: Model, task: Task, setup: Setup) -> Completion:
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


def ask_peer(task: Task, setup: Setup) -> Result:
    """Ask through `rlms`, in a process that is killed at the end of the budget.

    `rlms` runs the model's code in that process, without isolation.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "question": task.question,
            "model": str(setup.model).partition("/")[2],
            "base_url": setup.base_url,
            "calls": setup.calls,
            "seconds": setup.seconds,
            "sampling": {"temperature": setup.temperature, "max_tokens": setup.max_tokens},
        }
        Path(folder, "context.txt").write_text(task.whole)
        Path(folder, "given.json").write_text(json.dumps(given))
        try:
            done = subprocess.run(
                [sys.executable, str(PEER)],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=setup.seconds + 30,
                check=False,
            )
        except subprocess.TimeoutExpired:
            seconds = time.monotonic() - begun
            return Result(said="", ended=UNANSWERED, seconds=seconds, reason="out of time")
        found = Path(folder, "answer.json")
        if not found.exists():
            seconds, why = time.monotonic() - begun, done.stderr.strip()[-200:]
            return Result(said="", ended=UNANSWERED, seconds=seconds, reason=why)
        return Result(**json.loads(found.read_text()))


ARMS: dict[str, Callable[[Task, Setup], Result]] = {
    "atoll": ask_atoll,
    "bare": ask_bare,
    "rlms": ask_peer,
}


def ask(arm: str, task: Task, setup: Setup) -> Result:
    """Return an arm's answer; an error of the model or of the sandbox is a task not answered."""
    begun, used = time.monotonic(), _cpu_seconds(setup.server)
    try:
        result = ARMS[arm](task, setup)
    except AtollError as exc:
        seconds = time.monotonic() - begun
        result = Result(said="", ended=UNANSWERED, seconds=seconds, reason=f"{exc}"[:200])
    return dataclasses.replace(result, cpu_seconds=_cpu_seconds(setup.server) - used)


def _cpu_seconds(process: int | None) -> float:
    """Return the CPU time that a process has used so far; 0 for none."""
    if process is None:
        return 0.0
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def fitting(text: str, tokens: int) -> str:
    """Return the beginning of a text that has at most so many tokens, by the estimate."""
    text = text[: tokens * 8]
    while text and (counted := estimate(text)) > tokens:
        text = text[: int(len(text) * min(0.98, tokens / counted))]
    return text


def _context(task: Task, folder: Path) -> str | Path:
    """Return the text, or the folder that the source tree was written to."""
    if not task.files:
        return task.text
    for name, text in task.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder

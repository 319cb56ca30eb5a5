"""`atoll ask`: a question over files of any size, worked on by a model that writes code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.cli import answers, cells, streams
from atoll.cli.interrupts import INTERRUPTED, on_ctrl_c
from atoll.cli.progress import Progress
from atoll.config import backend_from_environment, model_from_environment
from atoll.errors import AtollError, ConfigError
from atoll.policy import Isolation
from atoll.rlm.budget import Budget
from atoll.rlm.core import RLM
from atoll.rlm.models.resolve import PROVIDERS
from atoll.rlm.trajectory import harmless

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from atoll.rlm.types import Answer

FAILED, FORCED = 1, 3
STDIN = "-"
TICK_SECONDS = 0.25
PATIENCE_SECONDS = 0.6
"""What a run has to end itself after Ctrl-C."""


def command(args: Namespace) -> int:
    """Ask what the arguments say; the exit code."""
    streams.accept_any_text()
    progress = None if args.quiet else Progress(sys.stderr)
    try:
        with _ended_soon() as hurry:
            answer = asyncio.run(_ask(args, progress, hurry))
    except ConfigError:  # nothing was asked: what was typed is wrong
        raise
    except AtollError as exc:
        return _failed(args, exc)
    if answer is None:
        return INTERRUPTED
    _tell(args, answer)
    return FORCED if answer.forced else 0


async def _ask(
    args: Namespace, progress: Progress | None, hurry: Callable[[], None]
) -> Answer | None:
    """The answer; None if Ctrl-C came first."""
    async with _rlm(args, progress) as rlm:
        work = asyncio.ensure_future(rlm.completion(args.question, _context(args)))

        def stop() -> None:
            hurry()
            work.cancel()

        with on_ctrl_c(stop, end_on_second=True), _shown(progress):
            await asyncio.wait([work])
    return None if work.cancelled() else work.result()


def _rlm(args: Namespace, progress: Progress | None) -> RLM:
    chosen = {
        "max_depth": args.max_depth,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "python": args.python,
        "min_isolation": None
        if args.min_isolation is None
        else Isolation.parse(args.min_isolation),
    }
    return RLM(
        args.model or model_from_environment() or _no_model(),
        sub_model=args.sub_model,
        base_url=args.base_url,
        window=args.window,
        budget=_budget(args),
        trajectory=args.trace,
        on_event=None if progress is None else progress.hear,
        backend=args.backend or backend_from_environment(),
        **{name: value for name, value in chosen.items() if value is not None},
    )


def _no_model() -> str:
    keys = [one.key_variable for one in PROVIDERS.values() if one.key_needed and one.key_variable]
    raise ConfigError(
        "no model: give --model openai/NAME or anthropic/NAME "
        f"(with the key in {' or '.join(keys)}), or --model local/NAME "
        "--base-url http://127.0.0.1:8000/v1. ATOLL_MODEL sets one for good"
    )


def _budget(args: Namespace) -> Budget:
    given: dict[str, Any] = {
        "usd": args.budget_usd,
        "seconds": args.budget_seconds,
        "tokens": args.budget_tokens,
        "iterations": args.max_turns,
    }
    return Budget(**{name: value for name, value in given.items() if value is not None})


def _context(args: Namespace) -> list[Path] | None:
    if args.context.count(STDIN) > 1:
        raise ConfigError("stdin can be read once: give - as context once")
    paths = [Path("/dev/stdin" if one == STDIN else one) for one in args.context]
    return paths or None


@contextlib.contextmanager
def _shown(progress: Progress | None) -> Iterator[None]:
    """While the block runs, progress goes on even if nothing happens."""
    if progress is None:
        yield
        return

    async def ticking() -> None:
        while True:
            progress.tick()
            await asyncio.sleep(TICK_SECONDS)

    ticks = asyncio.ensure_future(ticking())
    try:
        yield
    finally:
        ticks.cancel()
        progress.end()


@contextlib.contextmanager
def _ended_soon() -> Iterator[Callable[[], None]]:
    """A call that ends this process soon, unless the block ends before.

    A thread that reads a large file cannot be cancelled, and asyncio waits for it. Ending so
    leaves nothing behind: the jails end with the process that holds them.
    """
    timer = threading.Timer(PATIENCE_SECONDS, os._exit, (INTERRUPTED,))
    timer.daemon = True
    try:
        yield timer.start
    finally:
        timer.cancel()


def _tell(args: Namespace, answer: Answer) -> None:
    if args.json:
        answers.print_json(answer)
    else:
        answers.print_text(answer)
        sys.stdout.flush()  # before what is said about it
    if not (args.quiet or args.json):
        answers.print_support(answer)
    if answer.forced:
        cells.complain("a limit was reached: this is what was known by then")


def _failed(args: Namespace, exc: AtollError) -> int:
    told = harmless.line(str(exc))  # it may quote a server, or a guest
    if args.json:
        print(json.dumps({"outcome": "failed", "error": told}))
    cells.complain(told)
    return FAILED

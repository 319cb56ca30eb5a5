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

from atoll.agent.rlm.budget import Budget
from atoll.agent.rlm.core import RLM
from atoll.agent.rlm.types import Ended
from atoll.agent.trajectory import terminal_text
from atoll.cli import missing
from atoll.cli.commands import answers, cells, demo
from atoll.cli.commands.local import local_model
from atoll.cli.known import Known
from atoll.cli.terminal import streams
from atoll.cli.terminal.interrupts import INTERRUPTED, on_ctrl_c
from atoll.cli.terminal.progress import Progress
from atoll.errors import AtollError, ConfigError
from atoll.network import NetworkPolicy
from atoll.policy import Isolation

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from atoll.agent.rlm.models.types import Model
    from atoll.agent.rlm.types import Answer
    from atoll.agent.trajectory.events import Event

FAILED = 1
EXIT_CODES = {Ended.ANSWERED: 0, Ended.FORCED: 3, Ended.REFUSED: 4, Ended.UNANSWERED: 5}
COMPLAINTS = {
    Ended.FORCED: "a limit was reached ({reason}): this is the best answer known by then",
    Ended.REFUSED: "this answer was not accepted: {reason}",
    Ended.UNANSWERED: "there is no answer: {reason}",
}
STDIN = "-"
TICK_SECONDS = 0.25
PATIENCE_SECONDS = 0.6
"""The time that a run has to end itself after Ctrl-C."""


def command(args: Namespace) -> int:
    """Ask the question that the arguments name; return the exit code."""
    streams.accept_any_text()
    if args.demo:
        demo.set_up(args)
    missing.check(args)
    progress = _progress(args)
    try:
        with _model(args, progress) as model, _ended_soon() as hurry:
            answer = asyncio.run(_ask(args, model, progress, hurry))
    except ConfigError:  # nothing was asked: an argument is wrong
        raise
    except AtollError as exc:
        return _failed(args, exc)
    except KeyboardInterrupt:
        cells.complain("interrupted before the model was asked: nothing is known yet")
        return INTERRUPTED
    if answer is None:
        return INTERRUPTED
    _tell(args, answer)
    return EXIT_CODES[answer.ended]


def _progress(args: Namespace) -> Progress | None:
    if args.quiet:
        return None
    return demo.Story(sys.stderr, live=args.local) if args.demo else Progress(sys.stderr)


@contextlib.contextmanager
def _model(args: Namespace, progress: Progress | None) -> Iterator[str | Model]:
    """Yield the model; the local one runs as long as the block does."""
    name = missing.model_of(args)
    if name == missing.LOCAL:
        with local_model(args, progress) as model:
            yield model
    elif args.demo:
        yield demo.recorded()
    else:
        yield name


async def _ask(
    args: Namespace, model: str | Model, progress: Progress | None, hurry: Callable[[], None]
) -> Answer | None:
    """Return the answer; None if Ctrl-C came first."""
    known = Known()

    def hear(event: Event) -> None:
        known.hear(event)
        if progress is not None:
            progress.hear(event)

    async with _rlm(args, model, hear) as rlm:
        work = asyncio.ensure_future(rlm.completion(args.question, _context(args)))

        def stop() -> None:
            hurry()
            _tell_known(args, known, progress)
            work.cancel()

        with on_ctrl_c(stop, end_on_second=True), _shown(progress):
            await asyncio.wait([work])
    return None if work.cancelled() else work.result()


def _tell_known(args: Namespace, known: Known, progress: Progress | None) -> None:
    """Say what is known before the run is ended: there may be no time afterwards."""
    if progress is not None:
        progress.end()
        known.print(args.trace)
    if args.json:
        print(json.dumps(known.as_json(args.trace)), flush=True)


def _rlm(args: Namespace, model: str | Model, hear: Callable[[Event], None]) -> RLM:
    level = args.min_isolation
    chosen = {
        "max_depth": args.max_depth,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "python": args.python,
        "memory": args.memory_file,
        "min_isolation": None if level is None else Isolation.parse(level),
        "packages": args.packages or None,
        "allow_source": args.allow_source or None,
        "network": NetworkPolicy.of(args.allow_host),
    }
    return RLM(
        model,
        sub_model=args.sub_model,
        base_url=args.base_url,
        window=args.window,
        budget=_budget(args),
        trajectory=args.trace,
        on_event=hear,
        backend=args.backend or "",
        **{name: value for name, value in chosen.items() if value is not None},
    )


def _budget(args: Namespace) -> Budget:
    given: dict[str, Any] = {
        "usd": args.budget_usd,
        "seconds": args.budget_seconds,
        "tokens": args.budget_tokens,
        "iterations": args.max_turns,
    }
    return Budget(**{name: value for name, value in given.items() if value is not None})


def _context(args: Namespace) -> list[Path] | str | None:
    if args.demo:
        return demo.log_text()
    paths = [Path("/dev/stdin" if one == STDIN else one) for one in args.context]
    return paths or None


@contextlib.contextmanager
def _shown(progress: Progress | None) -> Iterator[None]:
    """Redraw the progress while the block runs, also when nothing happens."""
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
    """Yield a function that ends this process after PATIENCE_SECONDS, unless the block ends first.

    A thread that reads a large file cannot be cancelled, and asyncio waits for it. Ending the
    process leaves nothing behind: jails and the local model end with the process that holds them.
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
    if args.demo and not (args.quiet or args.json):
        demo.print_next(live=args.local)
    if answer.ended in COMPLAINTS:
        reason = terminal_text.line(answer.reason)  # it may quote a guest
        cells.complain(COMPLAINTS[answer.ended].format(reason=reason))
    if answer.unfound:
        many = f"{len(answer.unfound)} of {len(answer.evidence)}"
        cells.complain(f"{many} quotes of the answer are not in the context")


def _failed(args: Namespace, exc: AtollError) -> int:
    told = terminal_text.line(str(exc))  # it may quote a server, or a guest
    if args.json:
        print(json.dumps({"outcome": "failed", "error": told}))
    cells.complain(told)
    return FAILED

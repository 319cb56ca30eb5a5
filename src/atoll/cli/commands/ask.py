"""`atoll ask`: a question over files of any size, worked on by a model that writes code."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from atoll.agent.rlm.budget import Budget
from atoll.agent.rlm.core import RLM
from atoll.agent.rlm.models import local
from atoll.agent.rlm.models.local import QWEN, Store
from atoll.agent.rlm.models.resolve import PROVIDERS, REPLAY, resolve
from atoll.agent.rlm.types import Ended
from atoll.agent.trajectory import terminal_text
from atoll.cli.commands import answers, cells, demo
from atoll.cli.commands.answers import InterruptedRun
from atoll.cli.commands.cells import INTERRUPTED, on_ctrl_c
from atoll.cli.settings import image_fields
from atoll.cli.terminal import streams
from atoll.cli.terminal.progress import Progress
from atoll.config import variable
from atoll.errors import AtollError, ConfigError
from atoll.extras import install_command
from atoll.network import NetworkPolicy
from atoll.policy import Isolation
from atoll.text.amounts import size_text

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence

    from atoll.agent.rlm.models.types import CallOptions, Completion, Message, Model, OnText, Usage
    from atoll.agent.rlm.types import Answer
    from atoll.agent.strategies.planner import Plan
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
LOCAL = "local"
"""The name of the model that `atoll model get` downloads, as --model takes it."""
HTTP_CLIENT = "httpx2"
NO_KEY = f"""
Other ways:
  atoll ask --demo           watch a recorded run; needs no model and no network
  atoll model get            download a small local model ({size_text(QWEN.size)}), then:
  atoll ask 'QUESTION' --context FILE --model local"""
LOCAL_SETTINGS = {
    "window": local.WINDOW,
    "temperature": 0.0,
    "max_tokens": 400,
    "budget_seconds": 1800,
}
"""Options for a small and slow model, where the command line does not set them."""


def command(args: Namespace) -> int:
    """Ask the question that the arguments name; return the exit code."""
    streams.accept_any_text()
    if args.demo:
        demo.set_up(args)
    check_missing(args)
    if args.plan:
        answers.print_plan(asyncio.run(_plan(args)), as_json=args.json)
        return 0
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
    name = model_of(args)
    if name == LOCAL:
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
    known = InterruptedRun()

    def on_event(event: Event) -> None:
        known.on_event(event)
        if progress is not None:
            progress.on_event(event)

    async with _rlm(args, model, on_event) as rlm:
        work = asyncio.ensure_future(rlm.completion(args.question, _context(args)))

        def stop() -> None:
            hurry()
            # Say what is known before the run is ended: there may be no time afterwards.
            if progress is not None:
                progress.end()
                known.print(args.trace)
            if args.json:
                print(json.dumps(known.as_json(args.trace)), flush=True)
            work.cancel()

        with on_ctrl_c(stop, end_on_second=True), _shown(progress):
            await asyncio.wait([work])
    return None if work.cancelled() else work.result()


async def _plan(args: Namespace) -> Plan:
    """Return the plan for the question; no model is asked, and the local one is not started."""
    async with _rlm(args, model_of(args), lambda _: None) as rlm:
        return await rlm.plan(args.question, _context(args))


def _rlm(args: Namespace, model: str | Model, on_event: Callable[[Event], None]) -> RLM:
    level = args.min_isolation
    chosen = {
        "strategy": args.strategy,
        "max_cost": args.max_cost,
        "max_depth": args.max_depth,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "python": args.python,
        "memory": args.memory_file,
        "min_isolation": None if level is None else Isolation.parse(level),
        "packages": args.packages or None,
        "allow_source": args.allow_source or None,
        **{name: value or None for name, value in image_fields(args).items()},
        "network": NetworkPolicy.of(args.allow_host),
    }
    return RLM(
        model,
        sub_model=args.sub_model,
        base_url=args.base_url,
        window=args.window,
        budget=_budget(args),
        trajectory=args.trace,
        on_event=on_event,
        backend=args.backend or "",
        **{name: value for name, value in chosen.items() if value is not None},
    )


def _budget(args: Namespace) -> Budget:
    limits = [usd for usd in (args.budget_usd, args.max_cost) if usd is not None]
    given: dict[str, Any] = {
        "usd": min(limits, default=None),
        "seconds": args.budget_seconds,
        "tokens": args.budget_tokens,
        "iterations": args.max_turns,
    }
    return Budget(**{name: value for name, value in given.items() if value is not None})


def _context(args: Namespace) -> list[Path] | str | None:
    if args.demo:
        return demo.log_text()
    paths = [Path("/dev/stdin" if path == STDIN else path) for path in args.context]
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
    message = terminal_text.line(str(exc))  # it may quote a server, or a guest
    if args.json:
        print(json.dumps({"outcome": "failed", "error": message}))
    cells.complain(message)
    return FAILED


def check_missing(args: Namespace) -> None:
    """Raise ConfigError if something is missing; the message names all of it."""
    no_model = list(_missing_model(args))
    lacks = [*_missing_question(args), *no_model, *_missing_context(args)]
    if not lacks:
        return
    if not args.context and not args.demo:
        lacks.append("no context (optional). Add --context FILE or FOLDER, or - for stdin")
    listed = "\n".join(f"  - {lack}" for lack in lacks)
    other_ways = NO_KEY if no_model and model_of(args) != LOCAL else ""
    raise ConfigError(f"`atoll ask` cannot start:\n{listed}{other_ways}")


def model_of(args: Namespace) -> str:
    """Return the name of the model that the options or ATOLL_MODEL name; empty if none does."""
    return LOCAL if args.local else args.model or variable("ATOLL_MODEL")


def _missing_question(args: Namespace) -> Iterator[str]:
    if args.question is None:
        yield "no question. Type it in quotes: atoll ask 'Who signed it?' --context FILE"
    elif not args.question.strip():
        yield "the question is empty. Type one in quotes: atoll ask 'Who signed it?' --context FILE"


def _missing_model(args: Namespace) -> Iterator[str]:
    name = model_of(args)
    packages: list[str] = []
    if name == LOCAL:
        if not Store().complete:
            size = size_text(QWEN.size)
            yield f"the local model is not downloaded. Type: atoll model get (downloads {size})"
        if not local.is_installed():
            packages.append(local.LIBRARY)
    elif not name:
        yield "no model. Add --model openai/NAME or --model anthropic/NAME, or set ATOLL_MODEL"
        yield from _any_key()
    names = [model for model in (name, args.sub_model) if model and model != LOCAL]
    for fromkey in dict.fromkeys(names):
        yield from _named(fromkey, args.base_url)
    if not all(model.startswith(REPLAY) for model in (name, *names)) and not _importable():
        packages.append(HTTP_CLIENT)
    if packages:
        extras = {local.LIBRARY: "localllm", HTTP_CLIENT: "llm"}
        install = install_command(*(extras[package] for package in packages))
        yield f"not installed: {' and '.join(packages)}. Type: {install}"


def _any_key() -> Iterator[str]:
    """Say that there is no key, if no provider has one: the model is not chosen yet."""
    keys = [
        provider.key_variable
        for provider in PROVIDERS.values()
        if provider.key_needed and provider.key_variable
    ]
    if not any(map(variable, keys)):
        yield "no API key. Type: " + " or: ".join(f"export {key}=..." for key in keys)


def _named(name: str, base_url: str | None) -> Iterator[str]:
    """Say what the provider of a model needs and does not have."""
    if name.startswith(REPLAY):
        return
    kind, _, rest = name.partition("/")
    provider = PROVIDERS.get(kind)
    if provider is None or not rest:
        known = ", ".join(f"{prefix}/NAME" for prefix in PROVIDERS)
        yield f"there is no model {name!r}. A name is one of {known}, or local"
        return
    address = base_url or variable(provider.address_variable or "")
    if not (address or provider.address):
        yield f"{name} has no address. Add its server: --base-url http://127.0.0.1:8000/v1"
    key = provider.key_variable
    needs_key = provider.key_needed and (address or provider.address) == provider.address
    if needs_key and key and not variable(key):
        yield f"no API key for {name}. Type: export {key}=..."


def _missing_context(args: Namespace) -> Iterator[str]:
    if args.context.count(STDIN) > 1:
        yield "stdin can be read once: give --context - once"
    for path in args.context:
        if path != STDIN and not os.path.exists(os.path.expanduser(path)):
            yield f"cannot read {path}: there is no such file or folder"


def _importable() -> bool:
    return importlib.util.find_spec(HTTP_CLIENT) is not None


@contextlib.contextmanager
def local_model(args: Namespace, progress: Progress | None) -> Iterator[Model]:
    """Start the server, yield the model, end the server with the block."""
    for name, value in LOCAL_SETTINGS.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    store = Store()

    def wait() -> None:
        if progress is not None:
            progress.tick("loading the local model")

    try:
        with local.running(store.path, window=args.window, on_wait=wait) as served:
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
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> Completion:
        """Return the answer of the model."""
        options["on_text"] = options.get("on_text") or self._on_text
        return await self._model.complete(messages, **options)

    def would_cost(self, usage: Usage) -> float | None:
        """Return what the model says."""
        return self._model.would_cost(usage)

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()

"""Options of `atoll ask`; `arguments` adds them to its parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.argument_types import count, depth, dollars, seconds, temperature

if TYPE_CHECKING:
    import argparse


def add_ask(ask: argparse.ArgumentParser) -> None:
    """Add the options of `atoll ask` to its parser."""
    ask.add_argument("question", nargs="?", metavar="QUESTION", help="the question, in quotes")
    ask.add_argument(
        "--demo",
        action="store_true",
        help="replay a recorded run (no key, no network); with --local, run it live",
    )
    ask.add_argument(
        "--context",
        metavar="PATH",
        action="append",
        default=[],
        help="a text file, a folder, or - for stdin; repeatable",
    )
    ask.add_argument(
        "--trace", metavar="FILE", help="append every step to FILE (JSON lines): see atoll trace"
    )
    ask.add_argument(
        "--memory-file",
        metavar="FILE",
        help="keep in FILE which strategy worked for which question: see atoll memory",
    )
    ask.add_argument("--json", action="store_true", help="print one JSON object")
    ask.add_argument("--quiet", action="store_true", help="print the answer only")
    _add_models(ask.add_argument_group("models"))
    _add_limits(ask.add_argument_group("limits of the run"))


def _add_models(group: argparse._ArgumentGroup) -> None:
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--model",
        metavar="NAME",
        help="openai/NAME, anthropic/NAME, ollama/NAME, openai-compatible/NAME with --base-url "
        "(in short local/NAME), or local: the model that `atoll model get` downloads "
        "(default: $ATOLL_MODEL)",
    )
    which.add_argument("--local", action="store_true", help="the same as --model local")
    group.add_argument(
        "--sub-model", metavar="NAME", help="the model for sub-questions (default: the same)"
    )
    group.add_argument(
        "--base-url", metavar="URL", help="address of the model server, for openai-compatible/NAME"
    )
    group.add_argument(
        "--window", metavar="N", type=count, help="context window of the model in tokens, if small"
    )
    group.add_argument(
        "--max-tokens", metavar="N", type=count, help="tokens of one reply (default: 4096)"
    )
    group.add_argument(
        "--temperature",
        metavar="T",
        type=temperature,
        help="from 0 to 2 (default: the model's own default)",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--budget-usd",
        metavar="X",
        type=dollars,
        help="dollars for the whole run (default: no limit)",
    )
    group.add_argument(
        "--budget-seconds",
        metavar="S",
        type=seconds,
        help="seconds for the whole run (default: 600)",
    )
    group.add_argument(
        "--budget-tokens",
        metavar="N",
        type=count,
        help="tokens read and written by the whole run (default: no limit)",
    )
    group.add_argument(
        "--max-turns", metavar="N", type=count, help="most replies of the model (default: 30)"
    )
    group.add_argument(
        "--max-depth", metavar="N", type=depth, help="depth of runs inside runs (default: 1)"
    )

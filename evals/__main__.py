"""`make eval`: ask generated questions, print a table of right answers, tokens, calls, CPU time."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.agent.rlm.models import local
from atoll.agent.rlm.models.local import Store
from atoll.cli.argument_types import size
from evals.answers import Answers
from evals.arms import ARMS, Setup
from evals.asking import ask
from evals.benchmarks import READERS, BenchmarkTask, load
from evals.families import FAMILIES
from evals.report import Row, table
from evals.varied import VARIED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evals.tasks import Task

LOCAL = "local"
TASKS = {**FAMILIES, **VARIED}
REPORT_SEED = 2
"""Prompts were tuned on seed 1; what is reported is asked on another."""


def main(argv: Sequence[str] | None = None) -> int:
    """Ask every chosen arm every chosen task."""
    args = _arguments(argv)
    with _setup(args) as setup:
        answers = Answers(args.out, setup.facts)
        rows = [
            _answered(task, arm, setup, answers)
            for arm in args.arms  # one after the other: a server keeps what it has read of a prompt
            for task in _tasks(args)
        ]
    print(table(rows))
    for arm in args.arms if args.benchmark else ():
        scores = [row.score for row in rows if row.arm == arm]
        print(f"{arm}: mean score {sum(scores) / len(scores):.1%}".replace("%", " %"))
    return 0


def _tasks(args: argparse.Namespace) -> Iterator[Task | BenchmarkTask]:
    """Yield the tasks of a benchmark, or generated ones."""
    if args.benchmark:
        yield from load(args.benchmark, args.data, args.n)
        return
    for number in range(args.n):
        for family in args.families:
            yield TASKS[family](args.seed * 1_000 + number, args.size)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make eval ARGS=...", description=__doc__)
    parser.add_argument("--model", default=LOCAL, help="as for atoll ask (default: local)")
    parser.add_argument("--base-url", help="the address of its server")
    parser.add_argument("--window", type=int, default=local.WINDOW, help="tokens that it takes")
    parser.add_argument("--families", nargs="+", choices=list(TASKS), default=list(FAMILIES))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["atoll", "bare"])
    parser.add_argument("--size", type=size, default=300_000, help="of a text, 30k to 100M")
    parser.add_argument("-n", type=int, default=1, help="tasks of each family")
    parser.add_argument("--seed", type=int, default=REPORT_SEED)
    parser.add_argument("--calls", type=int, default=12, help="calls of the model for a task")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for a task")
    parser.add_argument("--cpu-seconds", type=float, help="of the local model's server, for a task")
    parser.add_argument("--max-tokens", type=int, default=400, help="of one reply")
    parser.add_argument("--out", type=Path, help="JSON lines; answers in it are kept")
    parser.add_argument("--benchmark", choices=list(READERS), help="a public one, from --data")
    parser.add_argument("--data", type=Path, help="the folder with the benchmark's files")
    args = parser.parse_args(argv)
    if bool(args.benchmark) != bool(args.data):
        parser.error("--benchmark and --data belong together: name the folder with its files")
    if args.cpu_seconds is not None and args.model != LOCAL:
        parser.error(
            "--cpu-seconds counts the local model's server: leave out --model, or use --seconds"
        )
    return args


@contextlib.contextmanager
def _setup(args: argparse.Namespace) -> Iterator[Setup]:
    """Yield what the arms share; the local model is served meanwhile."""
    common = {
        "window": args.window,
        "calls": args.calls,
        "seconds": args.seconds,
        "cpu_seconds": args.cpu_seconds,
        "max_tokens": args.max_tokens,
    }
    if args.model != LOCAL:
        yield Setup(model=args.model, base_url=args.base_url, **common)
        return
    store = Store()
    if not store.complete:
        sys.exit("the local model is not there. Type: atoll model get")
    with local.running(store.path, window=args.window) as served:
        name = f"local/{store.weights.name}"
        yield Setup(model=name, base_url=served.url, server=served.pid, **common)


def _answered(task: Task | BenchmarkTask, arm: str, setup: Setup, answers: Answers) -> Row:
    """Return what an arm answered; what is known from an earlier run is not asked again."""
    row = answers.known(task, arm)
    if row is None:
        result = ask(arm, task, setup)
        right = task.is_right(result.said)
        score = task.score(result.said) if isinstance(task, BenchmarkTask) else float(right)
        row = Row(family=task.family, arm=arm, right=right, result=result, score=score)
        answers.keep(task, row)
    why = f" ({row.result.reason})" if row.result.reason else ""
    verdict = "right" if row.right else "wrong"
    print(f"{task.name} {arm}: {verdict}, {row.result.ended}{why}", file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())

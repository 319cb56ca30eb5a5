"""How much ordinary Python still works behind the guards: documentation examples, counted.

    python tools/guard_share.py            the table of docs/backends/restricted.md
    python tools/guard_share.py json re    these modules alone

An example of an offered module counts if it ends in the backend as it does outside: with a value,
or with the same exception. All other examples are only checked by the guard `ast`, not run.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import doctest
import importlib
import io
import signal
import sys
import sysconfig
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted import checked_stdlib
from atoll.backends.restricted.worker import RestrictedRepl
from atoll.sandbox.guard import check
from atoll.sandbox.guard.offered import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE_SECONDS = 2.0
MODULE_SECONDS = 60.0
BROKEN = ("timeout", "NameError", "SyntaxError", "ModuleNotFoundError")
"""Examples that do not work outside either: text beside them would be needed."""
HIDDEN_FOLDERS = ("test", "idlelib", "lib2to3", "site-packages", "turtledemo", "__pycache__")


@dataclass(slots=True)
class Share:
    """How many examples were tried and worked, and why the others failed."""

    tried: int = 0
    worked: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def note(self, *, worked: bool, reason: str = "") -> None:
        """Count one example."""
        self.tried += 1
        self.worked += worked
        if not worked:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def add(self, other: Share) -> None:
        """Add the counts of another share."""
        self.tried += other.tried
        self.worked += other.worked
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count

    def row(self, name: str) -> str:
        """Return a line of the table."""
        share = f"{self.worked / self.tried:.1%}" if self.tried else "-"
        why = sorted(self.reasons.items(), key=lambda item: -item[1])[:3]
        text = "; ".join(f"{count} {reason}" for reason, count in why)
        return f"| {name} | {self.tried:,} | {share} | {text} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="offered modules (all, and the guard ast)")
    wanted = parser.parse_args().modules
    checked_stdlib.mend_library()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        print_tables(wanted)  # some examples write files to the current folder


def print_tables(wanted: list[str]) -> None:
    """Print the shares of these modules; without any, of all modules and the whole library."""
    print("| module | examples | work in `restricted` | the others |\n| --- | --- | --- | --- |")
    whole = Share()
    for name in wanted or sorted(MODULES):
        share = module_share(name)
        whole.add(share)
        if share.tried:
            print(share.row(f"`{name}`"), flush=True)
    print(whole.row("**all**"))
    if not wanted:
        print("\n| guard `ast` | examples | pass | the others |\n| --- | --- | --- | --- |")
        print(library_share().row("standard library"))


def module_share(name: str) -> Share:
    """Return how many of an offered module's own examples work in the backend."""
    share, end = Share(), time.monotonic() + MODULE_SECONDS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for test in _tests(importlib.import_module(name)):
            if time.monotonic() > end:
                break
            for worked, reason in _compare(name, test):
                share.note(worked=worked, reason=reason)
    return share


def library_share() -> Share:
    """Return how many examples in the whole standard library pass the guard `ast`."""
    share = Share()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if not set(path.parts) & set(HIDDEN_FOLDERS):
            for source in _examples_in(path):
                found = check(source, "ast")
                share.note(worked=not found, reason=found[0].rule if found else "")
    return share


def _tests(module: Any) -> list[doctest.DocTest]:
    with contextlib.suppress(ValueError, TypeError):
        found = [test for test in doctest.DocTestFinder().find(module) if test.examples]
        return [test for test in found if not any(p[:1] == "_" for p in test.name.split("."))]
    return []


def _compare(name: str, test: doctest.DocTest) -> Iterator[tuple[bool, str]]:
    """Yield for each example whether it ends in the backend as it does outside."""
    plain = {name: value for name, value in test.globs.items() if not name.startswith("_")}
    plain["__name__"] = "__main__"
    inside = RestrictedRepl(contextlib.nullcontext)
    inside.namespace.update(vars(inside.builtins[".load"](name)))
    inside.namespace["__name__"] = "__main__"
    if name.startswith("numpy"):
        inside.run("import numpy as np")
        plain["np"] = importlib.import_module("numpy")
    for example in test.examples:
        if _needs_another_library(example.source):
            return
        expected = _plainly(example.source, plain)
        if expected in BROKEN:
            continue
        found, why = _inside(inside, example.source)
        yield found == expected, why or f"{found} instead of {expected}"


def _needs_another_library(source: str) -> bool:
    """Return whether an example needs another library, mostly matplotlib."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return False
    names = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] not in {*sys.stdlib_module_names, "numpy"} for name in names)


def _plainly(source: str, namespace: dict[str, Any]) -> str:
    def run() -> None:
        code = builtins.compile(source, "<example>", "single", dont_inherit=True)
        exec(code, namespace)  # noqa: S102 - an example of the library's own

    return _ending(run)


def _ending(run: Any) -> str:
    """Return how a call ended: ok, or the exception's name."""
    try:
        with _quietly():
            run()
    except TimeoutError:
        return "timeout"
    except BaseException as exc:  # noqa: BLE001 - an example may raise anything at all
        return type(exc).__name__
    return "ok"


def _inside(repl: RestrictedRepl, source: str) -> tuple[str, str]:
    outcome: dict[str, Any] = {}
    ended = _ending(lambda: outcome.update(repl.run(source)))
    if ended != "ok":
        return ended, ""
    if outcome["kind"] == "ok":
        return "ok", ""
    error = str(outcome.get("error") or "")
    if outcome.get("error_type") in ("GuardError", "ImportError", "AttributeError"):
        return str(outcome["error_type"]), _short(error)
    return str(outcome.get("error_type") or "SystemExit"), ""


def _short(error: str) -> str:
    rule = error.partition("line ")[2].partition(", ")[2].partition(":")[0]
    return rule or error.partition(": ")[2].partition(" is not")[0].partition(";")[0][:50]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress output, and stop the block after a timeout."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, EXAMPLE_SECONDS)
    hook = sys.displayhook
    sys.displayhook = repr
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.displayhook = hook


def _too_long(*_args: object) -> None:
    raise TimeoutError


def _examples_in(path: Path) -> Iterator[str]:
    """Return the examples in a file's docstrings."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ">>>" in (text := ast.get_docstring(node) or ""):
            with contextlib.suppress(ValueError):
                yield from (one.source for one in doctest.DocTestParser().get_examples(text))


if __name__ == "__main__":
    main()

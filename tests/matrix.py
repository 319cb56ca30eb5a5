"""Which tests `make test` runs of a matrix, and in which order; `--matrix all` runs every one.

    contract tests      each of them in `native`; three of four in one more backend: daemon, wasm,
                        restricted, remote, gvisor, daemon, wasm and pyodide in turn
    repeated cases      of the cases of one test in REPEATED, and of the tests of TestDaemon,
                        which repeats TestNative, every sixth; each test begins with another
    long tests          those marked `long`, which show at a larger size or with real downloads
                        what others show already, are left out
    attacks             all of them in every backend as the user who runs the tests, but for the
                        daemon and gvisor: one of eight (escape/test_attacks.py)
    attacks as          one of eight in every backend, if root runs the tests
    ordinary user       (escape/test_as_ordinary_user.py)
    examples            those that need a large extra run in the environment of the tests, which
                        has it, instead of a clean one; shell examples, which download, are
                        left out (docs/test_examples.py)

A sample is the same each time: a failure can be run again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

IN_TURN = (
    "daemon", "wasm", None, "restricted", "remote", "gvisor", "daemon", "wasm", None, "pyodide",
    "remote", None,
)  # fmt: skip
"""The further backend of a contract test, by its number in its file. `restricted`, which has
tests/guard, and Pyodide and gVisor, whose starts are dear, have fewer."""
REPEATED = (
    "files/test_shell_sandbox.py", "files/test_shell_changes.py", "escape/test_host_folder.py",
    "replserver/test_repl_executor.py", "TestDaemon",
)  # fmt: skip
ONE_CASE_OF = 6
LONG = (
    "escape/test_as_ordinary_user.py", "escape/test_controls.py", "pool/test_soak_short.py",
    "unit/test_bench.py", "pyodide/test_setup.py", "pyodide/test_index.py", "escape/test_leaks.py", "docs/",
)  # fmt: skip
"""Tests that take long one by one: at the end, others would wait for them."""
TOGETHER = ("pyodide", "wasm", "remote", "daemon")
"""Backends, and folders of tests, that run one after the other. A test process gets neighbours, so
that few of them start a Deno, a service or a daemon of their own."""


class Sample:
    """Decides test by test, in the order of collection."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self._cases = Counter(_repeated_place(item.nodeid) for item in items)
        self._seen: Counter[tuple[str, str]] = Counter()
        self._begins: dict[str, int] = {}

    def takes(self, item: pytest.Item) -> bool:
        """Return whether a test is in the sample."""
        if item.get_closest_marker("long") is not None:
            return False
        if "/contract/" in item.nodeid:
            return self._takes_backend(item, backend_of(item))
        if any(name in item.nodeid for name in REPEATED):
            return self._is_turn_of_case(_repeated_place(item.nodeid))
        return True

    def _takes_backend(self, item: pytest.Item, backend: str) -> bool:
        number = self._next(item.nodeid.partition("::")[0], backend)
        return backend not in IN_TURN or IN_TURN[number % len(IN_TURN)] == backend

    def _is_turn_of_case(self, place: str) -> bool:
        """Take the n-th case of the n-th test, and every sixth from there; one at least."""
        begin = self._begins.setdefault(place, len(self._begins))
        first = begin % min(ONE_CASE_OF, self._cases[place])
        return self._next(place, "") % ONE_CASE_OF == first

    def _next(self, place: str, backend: str) -> int:
        self._seen[place, backend] += 1
        return self._seen[place, backend] - 1


def _repeated_place(nodeid: str) -> str:
    """Return what is sampled together: the cases of a test, or the tests of a repeated class."""
    return nodeid.rpartition("::")[0] if "TestDaemon" in nodeid else nodeid.partition("[")[0]


def sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of the sample."""
    decides = Sample(items)
    return [item for item in items if decides.takes(item)]


def order(item: pytest.Item) -> tuple[bool, int]:
    """Return a sort key: long tests first, then those that share what takes seconds to start."""
    return not any(name in item.nodeid for name in LONG), _kind(item)


def _kind(item: pytest.Item) -> int:
    backend = backend_of(item)
    found = [kind for kind in TOGETHER if kind == backend or f"/{kind}/" in item.nodeid]
    return TOGETHER.index(found[0]) if found else len(TOGETHER)


def backend_of(item: pytest.Item) -> str:
    """The backend that a test runs in, or an empty text."""
    case = getattr(item, "callspec", None)
    return str(case.params.get("backend", "")) if case is not None else ""

"""Which tests `make test` runs of a matrix, and in which order; `--matrix all` runs every one.

    contract tests      each of them in the first backend that can run it, which is mostly `native`;
                        every fourth in one more: daemon, wasm, remote, gvisor, restricted and
                        pyodide in turn. Where starts are dear (gvisor, pyodide), tests that open
                        sandboxes of their own take the daemon. Besides, for each capability that
                        a backend declares, one test that needs it; and the tests of limits in
                        every backend that enforces them in its own way
    repeated cases      of the cases of one test in REPEATED, and of the tests of TestDaemon,
                        which repeats TestNative, every sixth; each test begins with another
    long tests          those marked `long`, which show at a larger size or with real downloads
                        what others show already, are left out
    attacks             all of them in every backend as the user who runs the tests, but for the
                        daemon, one of eight, and gvisor, one of 32 (escape/test_attacks.py)
    attacks without     one of four: whether an attack bites says nothing of Atoll
    walls               (escape/test_controls.py)
    attacks as          one of eight in native, wasm and restricted, and two in pyodide, if root
    ordinary user       runs the tests (escape/test_as_ordinary_user.py)
    examples            those that need a large extra run in the environment of the tests, which
                        has it, instead of a clean one; shell examples, which download, are
                        left out (docs/test_examples.py)

A sample is the same each time: a failure can be run again.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from atoll import Capability

IN_TURN = ("daemon", "wasm", "remote", "gvisor", "restricted", "pyodide")
ONE_TEST_OF = 4
"""The further backend of a contract test, by its number in its file: of so many one has one."""
LIMITS = "contract/test_limits.py"
OWN_LIMITS = frozenset({"wasm", "gvisor", "restricted", "pyodide"})
"""Backends that enforce limits in their own way; guests of `daemon` and `remote` are in a jail of
`native`."""
DEAR = frozenset({"gvisor", "pyodide"})
"""Backends in which a start costs ten times what it does in `native`."""
REPEATED = (
    "files/test_shell_sandbox.py", "files/test_shell_changes.py", "escape/test_host_folder.py",
    "replserver/test_repl_executor.py", "TestDaemon", "pool/test_pool_limits.py",
    "test_destroyed_in_any_order", "test_zsh_completes", "test_fish_completes",
    "test_a_user_without_a_home_folder_sees_no_traceback", "test_a_reply_is_read_in_linear_time",
    "test_a_context_of_every_width_arrives_whole", "test_a_file_goes_where_the_guest_sees_it",
    "test_state_lives_on_from_request_to_request", "test_what_the_state_has_not_is_named",
    "test_no_text_of_a_document_can_end_its_block", "test_a_certificate_that_cannot_be_used_is_told",
    "test_hostile_replies_end_in_an_honest_answer_within_the_budget",
)  # fmt: skip
ONE_CASE_OF = 6
FIRST = (
    "service", "test_service_operator.py", "pyodide", "escape/test_as_ordinary_user.py", "gvisor", "docs/test_examples.py",
    "daemon", "escape/test_controls.py", "packages/", "cli/", "escape/test_attacks.py",
    "escape/test_leaks.py", "wasm/", "replserver/", "pool/", "contract/",
)  # fmt: skip
"""Groups of tests that take longest: at the end, others would wait for them."""
SHARING = {
    "remote": "service", "service": "service", "daemon": "daemon", "pyodide": "pyodide",
    "gvisor": "gvisor",
}  # fmt: skip
"""Backends, and folders of tests, by what their tests share: a service, a daemon, a Deno or a
container takes seconds to start. One test process runs all that share one."""
ALONE = ("test_service_operator.py", "test_service_restart.py")
"""Files of such a folder whose tests start what they need themselves."""


class Sample:
    """Decides test by test, in the order of collection."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self._cases = Counter(_repeated_place(item.nodeid) for item in items)
        self._home = _homes(items)
        self._first = _first_of_each_capability(items)
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
        if backend not in IN_TURN or backend == self._home[_function(item)]:
            return True
        if LIMITS in item.nodeid and backend in OWN_LIMITS:
            return True
        number, left = divmod(self._next(item.nodeid.partition("::")[0], backend), ONE_TEST_OF)
        turn = IN_TURN[number % len(IN_TURN)]
        if turn in DEAR and not _shares_sandbox(item):
            turn = "daemon"
        return item in self._first or (left == 0 and turn == backend)

    def _is_turn_of_case(self, place: str) -> bool:
        """Take the n-th case of the n-th test, and every sixth from there; one at least."""
        begin = self._begins.setdefault(place, len(self._begins))
        first = begin % min(ONE_CASE_OF, self._cases[place])
        return self._next(place, "") % ONE_CASE_OF == first

    def _next(self, place: str, backend: str) -> int:
        self._seen[place, backend] += 1
        return self._seen[place, backend] - 1


def _homes(items: list[pytest.Item]) -> dict[str, str]:
    """Return the first backend that can run it, for each test function."""
    homes: dict[str, str] = {}
    for item in items:
        homes.setdefault(_function(item), backend_of(item))
    return homes


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _first_of_each_capability(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the contract test that first needs a capability, for each that a backend declares.

    Where starts are dear, it is the first that shares a sandbox, if there is one.
    """
    first: dict[tuple[str, str], pytest.Item] = {}
    for item in items:
        backend = backend_of(item)
        if "/contract/" not in item.nodeid or item.get_closest_marker("long") is not None:
            continue
        for place in ((backend, str(one)) for one in capabilities_of(item)):
            dear = backend in DEAR and place in first and not _shares_sandbox(first[place])
            if place not in first or (dear and _shares_sandbox(item)):
                first[place] = item
    return set(first.values())


def capabilities_of(item: pytest.Item) -> set[Capability]:
    """Return what a backend must be able to do for a test."""
    return {one for mark in item.iter_markers("needs") for one in mark.args}


def _shares_sandbox(item: pytest.Item) -> bool:
    return "box" in getattr(item, "fixturenames", ())


def _repeated_place(nodeid: str) -> str:
    """Return what is sampled together: the cases of a test, or the tests of a repeated class."""
    return nodeid.rpartition("::")[0] if "TestDaemon" in nodeid else nodeid.partition("[")[0]


def sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of the sample."""
    decides = Sample(items)
    return [item for item in items if decides.takes(item)]


def order(item: pytest.Item) -> int:
    """Return a sort key: the groups that take longest come first."""
    group = group_of(item.nodeid)
    return next((n for n, name in enumerate(FIRST) if name in group), len(FIRST))


def group_of(nodeid: str) -> str:
    """Return the group of tests that one test process runs: a file, or all that share something."""
    file, _, name = nodeid.partition("::")
    if file.endswith(ALONE):
        return file
    words = (*re.split(r"[\[\]-]", name)[1:], *file.split("/")[:-1])
    return next((SHARING[word] for word in words if word in SHARING), file)


def backend_of(item: pytest.Item) -> str:
    """The backend that a test runs in, or an empty text."""
    case = getattr(item, "callspec", None)
    return str(case.params.get("backend", "")) if case is not None else ""

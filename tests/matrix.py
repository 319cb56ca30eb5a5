"""Which tests `make test` runs of a matrix, and in which order; `--matrix all` runs every one.

    contract tests      each of them in the first backend that can run it, which is mostly `native`;
                        every fourth in one more: daemon, wasm, remote, gvisor, restricted and
                        pyodide in turn. Where starts are dear (gvisor, pyodide), tests that open
                        sandboxes of their own take the daemon. Besides, for each capability that
                        a backend declares, one test that needs it; and the tests of limits in
                        every backend that enforces them in its own way (one case of each test
                        where starts are dear). Besides, one of eight in `native`, and one of 16
                        in `daemon`, with a container image as their root (variants.py)
    repeated cases      of the cases of one test in REPEATED, and of the tests of TestDaemon,
                        which repeats TestNative, every sixth; each test begins with another
    long tests          those marked `long`, which take long and show at a larger size, with real
                        downloads or in another way what others show already, are left out
    attacks             all of them in every backend as the user who runs the tests, but for the
                        daemon, one of 16, and gvisor, one of 32 (escape/test_attacks.py); with
                        an image as root, one of 32 in native, one of 64 in the daemon
    attacks without     one of eight: whether an attack bites says nothing of Atoll
    walls               (escape/test_controls.py, guard/test_gadgets.py)
    attacks as          one of eight in native, wasm and restricted, if root runs the tests
    ordinary user       (escape/test_as_ordinary_user.py)
    examples            those that need a large extra run in the environment of the tests, which
                        has it, instead of a clean one, and only if they are the cookbook's; shell
                        examples, which download, are left out (docs/test_examples.py)

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
ONE_IN_IMAGE_OF = {"native-image": 8, "daemon-image": 16}
"""Of so many contract tests of a file, one has an image as its root; the daemon takes others."""
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
    "test_hostile_replies_end_in_an_honest_answer_within_the_budget", "integrations/test_deepagents.py",
    "test_without_a_jail_it_is_virtual_all_the_same", "test_a_trap_is_a_crash_and_the_next_cell_works",
    "test_every_file_counts_wherever_it_is", "test_no_module_leads_to_javascript",
    "test_a_worker_may_do_nothing_even_with_all_of_javascript", "test_a_worker_that_lies_is_the_end",
    "test_what_is_killed_from_outside_leaves_nothing_and_a_new_one_starts",
    "test_what_an_index_refuses_names_the_package_and_the_reason", "test_pip_downloads_a_wheel",
    "test_cells_that_are_damaged_do_not_keep_a_session_from_going_on",
    "test_a_session_that_cannot_come_back_is_gone_and_the_service_starts",
    "test_without_the_extra_a_catastrophic_pattern_is_stopped", "test_closed_stdin_is_one_line_and_2",
    "test_after_50_tasks_the_learned_planner_beats_every_fixed_strategy",
    "test_streams_that_are_closed_or_full", "test_a_forced_answer_is_prose_or_none",
    "test_every_request_of_a_run_fits_into_the_window", "test_a_pipe_is_the_programs_stdin",
    "test_all_of_a_session_that_is_put_aside_comes_back", "test_arguments_are_in_sys_argv",
    "test_a_session_that_would_lose_something_stays_in_memory", "test_without_stdin_there_is_nothing_to_read",
    "test_random_programs_cannot_tell_parallel_from_sequential", "test_thousands_of_folders",
    "test_a_runtime_that_was_taken_over_gains_nothing_by_a_fork", "test_a_server_that_is_killed_leaves_nothing",
    "test_deep_recursion_is_an_error_and_state_stays", "test_a_host_that_ends_takes_its_server_with_it",
)  # fmt: skip
ONE_CASE_OF = 6
IMAGES = "in an image"
"""The group of tests in an image, which one test process makes."""
FIRST = (
    "service", "test_service_operator.py", "pyodide", "escape/test_as_ordinary_user.py", "gvisor", "docs/test_examples.py",
    "daemon", "escape/test_controls.py", "packages/", "cli/", "escape/test_attacks.py",
    "wasm/", "replserver/", IMAGES, "pool/", "contract/",
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
        if backend in ONE_IN_IMAGE_OF:
            number = self._next(item.nodeid.partition("::")[0], backend)
            return number % ONE_IN_IMAGE_OF[backend] == (backend == "daemon-image")
        if backend not in IN_TURN or backend == self._home[_function(item)]:
            return True
        if LIMITS in item.nodeid and backend in OWN_LIMITS:
            return backend not in DEAR or self._next(_function(item), backend) == 0
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
    for item in sorted(items, key=lambda item: LIMITS not in item.nodeid):  # they are run anyway
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
    if any(case in name.partition("[")[2] for case in ONE_IN_IMAGE_OF):
        return IMAGES
    words = (*re.split(r"[\[\]-]", name)[1:], *file.split("/")[:-1])
    return next((SHARING[word] for word in words if word in SHARING), file)


def backend_of(item: pytest.Item) -> str:
    """The backend that a test runs in, or an empty text."""
    case = getattr(item, "callspec", None)
    return str(case.params.get("backend", "")) if case is not None else ""

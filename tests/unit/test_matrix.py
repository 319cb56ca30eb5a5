"""Which test process runs a test: those that share a daemon, a service or a Deno have the same."""

from __future__ import annotations

import matrix
import pytest


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/text/test_spill.py::test_a[x]", "tests/text/test_spill.py"),
        ("tests/contract/test_code.py::test_a[native]", "tests/contract/test_code.py"),
        ("tests/contract/test_code.py::test_a[daemon-1]", "daemon"),
        ("tests/contract/test_code.py::test_a[1-remote]", "service"),
        ("tests/escape/test_attacks.py::test_a[pyodide-pyo-x]", "pyodide"),
        ("tests/service/test_e2b.py::test_a", "service"),
    ],
)
def test_tests_that_share_something_are_one_group(nodeid: str, group: str) -> None:
    assert matrix.group_of(nodeid) == group


class Item:
    """What the sample looks at of a test."""

    def __init__(self, number: int, backend: str, fixture: str) -> None:
        self.nodeid = f"tests/contract/test_x.py::test_{number}[{backend}]"
        self.callspec = type("Case", (), {"params": {"backend": backend}})
        self.fixturenames = ("backend", fixture)

    def get_closest_marker(self, _name: str) -> None:
        return None


def _sample(fixture: str) -> dict[str, int]:
    backends = ("native", "daemon", "wasm", "remote", "gvisor", "restricted", "pyodide")
    items = [Item(number, backend, fixture) for number in range(120) for backend in backends]
    chosen = matrix.sample(items)
    return {one: sum(f"[{one}]" in item.nodeid for item in chosen) for one in backends}


def test_contract_tests_run_in_native_and_every_second_in_one_more_backend() -> None:
    found = _sample("box")
    assert found.pop("native") == 120
    assert set(found.values()) == {10}


def test_dear_backends_get_the_tests_that_share_a_sandbox_and_the_daemon_the_others() -> None:
    found = _sample("open_box")
    assert (found["gvisor"], found["pyodide"], found["daemon"]) == (0, 0, 30)

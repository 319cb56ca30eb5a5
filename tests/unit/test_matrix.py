"""Which test process runs a test: those that share a daemon, a service or a Deno have the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matrix
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/text/test_spill.py::test_a[x]", "tests/text/test_spill.py"),
        ("tests/contract/test_code.py::test_a[native]", "tests/contract/test_code.py"),
        ("tests/contract/test_code.py::test_a[daemon-1]", "daemon"),
        ("tests/contract/test_code.py::test_a[1-remote]", "service"),
        ("tests/escape/test_attacks.py::test_a[pyodide-pyo-x]", "pyodide"),
        ("tests/contract/test_code.py::test_a[1-daemon-image]", matrix.IMAGES),
        ("tests/escape/test_attacks.py::test_a[native-image-nat-x]", matrix.IMAGES),
        ("tests/service/test_e2b.py::test_a", "service"),
        (
            "tests/service/test_service_operator.py::test_a",
            "tests/service/test_service_operator.py",
        ),
    ],
)
def test_tests_that_share_something_are_one_group(nodeid: str, group: str) -> None:
    assert matrix.group_of(nodeid) == group


def test_a_download_that_fails_fails_the_tests_of_its_backend_and_is_named_once(tmp_path) -> None:
    nowhere = "http://127.0.0.1:9"
    env = os.environ | {"ATOLL_CACHE": str(tmp_path), "ATOLL_TEST_BACKENDS": "restricted,pyodide"}
    env |= {"HTTPS_PROXY": nowhere, "https_proxy": nowhere, "PYTEST_ADDOPTS": ""}
    tests = ("tests/contract/test_code.py", "-k", "test_validation_runs_nothing", "--matrix", "all")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 passed" in done.stdout
    assert "1 error" in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert done.stdout.count("the backend pyodide could not be built or downloaded") == 1


BACKENDS = ("native", "daemon", "wasm", "remote", "gvisor", "restricted", "pyodide")


class Item:
    """What the sample looks at of a test."""

    def __init__(
        self, number: int, backend: str, fixture: str, *needs: str, file: str = "test_x.py"
    ) -> None:
        self.nodeid = f"tests/contract/{file}::test_{number}[{backend}]"
        self.callspec = type("Case", (), {"params": {"backend": backend}})
        self.fixturenames = ("backend", fixture)
        self.needs = needs

    def get_closest_marker(self, _name: str) -> None:
        return None

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        assert name == "needs"
        return [pytest.mark.needs(*self.needs).mark]


def _sample(fixture: str) -> dict[str, int]:
    items = [Item(number, backend, fixture) for number in range(240) for backend in BACKENDS]
    chosen = matrix.sample(items)
    return {one: sum(f"[{one}]" in item.nodeid for item in chosen) for one in BACKENDS}


def test_contract_tests_run_in_native_and_every_fourth_in_one_more_backend() -> None:
    found = _sample("box")
    assert found.pop("native") == 240
    assert set(found.values()) == {10}


def test_dear_backends_get_the_tests_that_share_a_sandbox_and_the_daemon_the_others() -> None:
    found = _sample("open_box")
    assert (found["gvisor"], found["pyodide"], found["daemon"]) == (0, 0, 30)


def test_each_capability_of_a_backend_is_tested_in_it() -> None:
    """Numbers 1 and 2 have no turn; the second shares a sandbox, which is cheaper."""
    items = [
        Item(number, backend, fixture, *needs)
        for number, fixture, needs in ((0, "box", ()), (1, "open_box", ("a", "b")), (2, "box", "b"))
        for backend in BACKENDS
    ]
    chosen = {item.nodeid.rpartition("_")[2] for item in matrix.sample(items)}
    assert {f"1[{one}]" for one in BACKENDS} <= chosen, "only this one needs a"
    assert chosen & {f"2[{one}]" for one in BACKENDS} == {"2[native]", "2[gvisor]", "2[pyodide]"}


def test_a_test_that_native_cannot_run_is_run_by_the_first_backend_that_can() -> None:
    able = BACKENDS[1:]
    items = [Item(number, backend, "open_box", "a") for number in range(40) for backend in able]
    chosen = [item.nodeid for item in matrix.sample(items)]
    assert sum("[daemon]" in nodeid for nodeid in chosen) == 40


def test_limits_are_tested_in_each_backend_that_enforces_them_in_its_own_way() -> None:
    numbers = range(1, 4)  # none of them has a turn elsewhere
    items = [
        Item(number, backend, "open_box", file="test_limits.py")
        for number in (0, *numbers)
        for backend in BACKENDS
    ]
    chosen = {item.nodeid.rpartition("_")[2] for item in matrix.sample(items)}
    own = ("native", "wasm", "gvisor", "restricted", "pyodide")
    assert {f"{number}[{one}]" for number in numbers for one in own} <= chosen
    assert not {f"{number}[{one}]" for number in numbers for one in ("daemon", "remote")} & chosen

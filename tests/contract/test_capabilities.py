"""Which backend declares what. Tests that need more are left out for it, so a loss shows here."""

from __future__ import annotations

import pytest

from atoll import Capability
from atoll.backends import registry

EVERYWHERE = {"bridge", "cancel", "limit-cpu", "limit-memory", "limit-output", "limit-time"} | {
    "state", "streaming"
}  # fmt: skip
FILES = {"display", "files", "imports", "limit-disk", "limit-file-size", "save", "workspace"} | {
    "packages"
}  # fmt: skip
PROCESSES = {"images", "interpreter", "limit-processes", "shared-context", "shell", "subprocess"} | {
    "threads", "processes"
}  # fmt: skip
OWN_ROOT = {"host-folder", "network", "fetch", "ports", "folders"}
DECLARED = {
    "native": EVERYWHERE | FILES | PROCESSES | OWN_ROOT,
    "gvisor": EVERYWHERE | FILES | PROCESSES | {"host-folder", "network", "fetch", "ports"},
    "daemon": EVERYWHERE | FILES | PROCESSES | OWN_ROOT | {"fork"},
    "remote": EVERYWHERE | FILES | (PROCESSES - {"interpreter"}) | {"fork", "ports"},
    "ray": EVERYWHERE
    | FILES
    | (PROCESSES - {"interpreter"})
    | {"network", "fetch", "fork", "ports"},
    "wasm": EVERYWHERE | FILES | {"host-folder", "fetch"},
    "pyodide": EVERYWHERE | FILES | {"limit-processes", "fetch"},
    "restricted": EVERYWHERE | {"shared-context"},
}


@pytest.mark.parametrize("name", registry.names())
def test_a_backend_declares_what_it_can_do(name: str) -> None:
    assert set(map(str, registry.load(name).capabilities)) == DECLARED[name]


def test_every_capability_is_declared_by_a_backend() -> None:
    assert set().union(*DECLARED.values()) == set(map(str, Capability))

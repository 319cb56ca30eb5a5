"""The attacks keep one neighbour open for the whole run; test_leaks watches over leftovers here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import variants

if TYPE_CHECKING:
    from conftest import OwnDaemon


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Stands in for the check after every test, which would see that neighbour."""


@pytest.fixture(autouse=True)
def daemon_for_its_backend(
    request: pytest.FixtureRequest,
    own_daemon: OwnDaemon,
    no_foreign_daemon: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attacks on the `daemon` backend have a daemon of this test process to attack."""
    case = getattr(request.node, "callspec", None)
    if case is not None and variants.backend_of(case.params.get("backend")) == "daemon":
        monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(own_daemon.start()))

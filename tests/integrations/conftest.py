"""For the suites of others: the marks that they use, whose plugins are switched off here."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for name in ("benchmark", "vcr"):
        config.addinivalue_line("markers", f"{name}: a mark of langchain-tests', without effect")

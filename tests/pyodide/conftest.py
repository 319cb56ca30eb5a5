"""Shared by the tests of the pyodide ring: it is set up once a test run."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def ready(pyodide_is_set_up):
    """Pyodide is fetched, its image is built on first use."""

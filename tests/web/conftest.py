"""A server for every test; and the archives' kit, as PDFs come by the web too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from webkit import Server

sys.path.append(str(Path(__file__).parents[1] / "archive"))


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()

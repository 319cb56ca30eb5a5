"""A server on loopback for every test."""

from __future__ import annotations

import pytest
from egresskit import Origin


@pytest.fixture
async def origin():
    async with Origin().serving() as made:
        yield made

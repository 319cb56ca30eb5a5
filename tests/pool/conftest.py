"""A pool of the smallest tier for each test, and sandboxes out of it that are always destroyed."""

from __future__ import annotations

import pytest
from poolkit import Family, meet_strangers

from atoll.hosting.pool import Pool


@pytest.fixture(autouse=True)
def strangers():
    """What this test process has started before is not taken for this test's."""
    meet_strangers()


@pytest.fixture
async def pool():
    async with Pool() as one:
        yield one


@pytest.fixture
async def family(pool):
    one = Family(pool)
    yield one
    await one.close()

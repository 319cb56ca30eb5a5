"""Nothing that all sandboxes share can be changed or watched: from each kind of guest."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kernel_attacks import BITES, CALLS, bitten

from atoll.aio import create_sandbox


@pytest.fixture(params=["cold", "forked", "clone"])
async def guest(request, family):
    if request.param == "cold":
        async with create_sandbox(backend="native", timeout_ms=20_000) as box:
            yield box
        return
    box = await family.open()
    yield box if request.param == "forked" else await family.fork(box)


async def test_nothing_that_is_shared_can_be_changed_or_watched(guest):
    assert await bitten(guest) == {}


@pytest.mark.parametrize("code", BITES.values(), ids=BITES)
def test_the_attack_bites_without_walls(tmp_path, code):
    program = (CALLS + code).replace("SHARED = os.__file__", f"SHARED = {str(tmp_path / 'f')!r}")
    (tmp_path / "f").write_text("x")
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "PWNED" in ran.stdout

"""What a backend whose guard offers no event loop says to a cell that awaits."""

from __future__ import annotations

import pytest

from atoll import Capability


@pytest.mark.parametrize(
    "code",
    ["await f()", "async for x in f(): pass", "async with f(): pass", "[x async for x in f()]"],
)
def test_awaiting_is_refused_in_words(box, code):
    if Capability.IMPORTS in box.capabilities:
        pytest.skip("this backend awaits")
    result = box.execute("async def f(): return 1\n" + code)
    assert result.error_type == "GuardError"
    assert "await outside a function" in result.error
    assert 'create_sandbox(backend="native")' in result.error
    assert box.validate_code(code) is False

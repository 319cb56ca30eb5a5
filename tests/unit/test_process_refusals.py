"""Backends that cannot start processes say so."""

from __future__ import annotations

import pytest

from atoll import Capability, SandboxConfig, UnsupportedError
from atoll.backends import registry

WITHOUT = [
    name
    for name in registry.names()
    if Capability.PROCESSES not in registry.load(name).capabilities
]


@pytest.mark.parametrize("name", WITHOUT)
async def test_a_process_is_refused_in_words(name: str) -> None:
    box = registry.load(name)(SandboxConfig(backend=name))
    vars(box)["_open"] = True  # it is not started: that takes a while
    with pytest.raises(UnsupportedError, match=f"{name}.*process"):
        await box.start("true")

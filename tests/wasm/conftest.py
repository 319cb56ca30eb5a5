"""A cache of a test's own, with the component of all tests in it."""

from __future__ import annotations

import pytest

from atoll.backends.wasm import build
from atoll.backends.wasm.launch import _warm_workers


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Packages and builds of this test alone; the component is there already."""
    folder = build.find().folder
    place = tmp_path / "cache" / "wasm"
    place.mkdir(parents=True)
    (place / folder.name).symlink_to(folder)
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    yield place
    if (built := build._found.pop(place / folder.name, None)) is not None:
        _warm_workers(built).discard(whole=True)

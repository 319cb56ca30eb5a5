"""What is built of the guest's files is built again when one of them changes, in whatever room."""

from __future__ import annotations

import shutil

import pytest

from atoll.backends.pyodide import image
from atoll.backends.wasm import build
from atoll.launch import interpreter


@pytest.mark.parametrize("digest", [build._sources, image._sources_digest])
def test_a_change_in_any_room_of_the_guest_changes_the_key(tmp_path, monkeypatch, digest):
    guest = tmp_path / "guest"
    shutil.copytree(interpreter.GUEST_FOLDER, guest)
    monkeypatch.setattr(interpreter, "GUEST_FOLDER", str(guest))
    keys = []
    for _ in range(2):
        interpreter.guest_digest.cache_clear()
        build._sources.cache_clear()
        keys.append(digest())
        (guest / "cells" / "repl.py").write_text("changed")
    interpreter.guest_digest.cache_clear()
    build._sources.cache_clear()
    assert keys[0] != keys[1]

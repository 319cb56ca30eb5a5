"""What of a session no saved state holds."""

from __future__ import annotations

import sys
import types

from atoll.guest import leftovers


def _module(name: str, file: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = file
    return module


def test_modules_of_an_interpreter_below_a_folder_of_the_guest_are_not_the_sessions_own(
    monkeypatch,
):
    files = {
        "own": "/app/own.py",
        "written": "/tmp/written.py",
        "installed": "/tmp/venv/lib/installed.py",
        "library": "/usr/lib/library.py",
    }
    for name, file in files.items():
        monkeypatch.setitem(sys.modules, name, _module(name, file))
    found = leftovers.own_modules("/app", {"/tmp/venv"})
    assert {"module own", "module written"} <= set(found)
    assert not {"module installed", "module library"} & set(found)

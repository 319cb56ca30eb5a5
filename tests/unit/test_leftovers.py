"""What of a session no saved state holds."""

from __future__ import annotations

import subprocess
import sys
import types

from atoll.guest.state import leftovers


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


def test_what_is_mounted_in_a_folder_that_is_not_saved_is_found_by_its_first_name():
    code = """
import os
from atoll.guest.state import leftovers
from atoll.jail.walls import syscalls, users
users.enter_own_user_namespace(seen_as=0)
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("tmpfs", "/tmp", "tmpfs", 0)
os.makedirs("/tmp/a b\u00e9/c")
os.mkdir("/tmp/other")
syscalls.mount("tmpfs", "/tmp/a b\u00e9/c", "tmpfs", 0)
print(ascii(sorted(one for one in leftovers.mounted_elsewhere() if one.startswith("/tmp"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['/tmp/a b\\xe9']\n"

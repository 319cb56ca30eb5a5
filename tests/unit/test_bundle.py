"""The runtime's modules in one file: a guest starts from it, and without it all the same."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

import atoll
from atoll.guest.entry import bundle
from atoll.launch.boot import _BOOT
from atoll.launch.interpreter import GUEST_FOLDER


@pytest.fixture
def folder(tmp_path):
    """A copy of the runtime, with a place for compiled files and none in it."""
    copy = tmp_path / "guest"
    shutil.copytree(GUEST_FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "__pycache__").mkdir()
    return copy


def boot(root: Path) -> bytes:
    """What a guest says on its channel before it finds that the host is gone."""
    command = [sys.executable, "-I", "-B", "-c", _BOOT, str(root), "__main__"]
    shell = ["sh", "-c", 'exec "$@" 3>/dev/null', "sh", *command]
    done = subprocess.run(shell, capture_output=True, stdin=subprocess.DEVNULL, check=True)
    return done.stdout


@pytest.mark.parametrize("state", ["whole", "missing", "broken"])
def test_a_guest_starts_whatever_has_become_of_the_bundle(folder, state):
    if state == "whole":
        bundle.write(str(folder))
        for module in folder.rglob("*.py"):
            module.unlink()  # nothing else is read
    elif state == "broken":
        Path(bundle.path(str(folder))).write_bytes(b"cut")
    assert b'"method":"ready"' in boot(folder.parent)


def test_without_it_no_error_is_left_for_tracebacks(tmp_path):
    (tmp_path / "guest").mkdir()
    main = "import sys\ndef main(folder):\n    print(sys.exc_info()[0])\n"
    (tmp_path / "guest/__main__.py").write_text(main)
    assert boot(tmp_path) == b"None\n"


def test_it_is_written_again_when_a_module_has_changed(folder):
    bundle.write(str(folder))
    target = Path(bundle.path(str(folder)))
    first = target.stat().st_mtime_ns, target.stat().st_ino
    assert not bundle.write(str(folder))
    assert (target.stat().st_mtime_ns, target.stat().st_ino) == first
    (folder / "shared/kinds.py").write_text("CHANGED = 1\n")
    assert bundle.write(str(folder))
    assert "CHANGED" in modules(target)["guest.shared.kinds"].co_names


def modules(target: Path) -> dict[str, CodeType]:
    """What a bundle holds, in its order."""
    with target.open("rb") as file:
        file.readline()
        return {name: code for name, _, code in marshal.loads(file.read())[1]}


def test_it_holds_what_a_guest_starts_with_each_module_after_those_it_imports(folder):
    bundle.write(str(folder))
    names = list(modules(Path(bundle.path(str(folder)))))
    assert names[0] == "guest"
    assert names[-1] == "guest.__main__"
    assert "guest.state.keeper" not in names  # which is loaded by the first save()
    for needed, user in [
        ("shared.kinds", "shared.values"),
        ("shared.values", "cells.repl"),
        ("cells.repl", "entry.server"),
    ]:
        assert names.index(f"guest.{needed}") < names.index(f"guest.{user}")


def test_it_is_written_where_no_module_was_compiled_yet(folder):
    (folder / "__pycache__").rmdir()
    bundle.write(str(folder))
    assert os.path.exists(bundle.path(str(folder)))


def test_a_folder_that_cannot_be_written_to_is_left_alone(folder):
    (folder / "__pycache__").rmdir()
    (folder / "__pycache__").touch()
    bundle.write(str(folder))
    assert not os.path.exists(bundle.path(str(folder)))


def test_guest_code_sees_nothing_of_it():
    with atoll.create_sandbox(backend="native") as box:
        code = "import sys\n[type(one).__name__ for one in sys.meta_path] + sorted(sys.path_hooks, key=str)"
        assert "Bundle" not in str(box.execute(code).value)
        assert (
            box.execute("'guest' in sys.modules or 'guest.entry.bundle' in sys.modules").value
            is False
        )


def test_a_guest_starts_without_modules_that_few_cells_need():
    with atoll.create_sandbox(backend="native") as box:
        code = (
            "import sys\nsorted({'__future__', 'binascii', 'fcntl', 'warnings'} & set(sys.modules))"
        )
        assert box.execute(code).value == []


def test_garbage_is_collected_in_a_guest_and_the_runtime_is_not_searched_for_it():
    with atoll.create_sandbox(backend="native") as box:
        assert (
            box.execute("import gc\ngc.isenabled() and gc.get_freeze_count() > 1000").value is True
        )

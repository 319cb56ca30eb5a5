"""The component is built once, whole or not at all, by one process, for its user alone."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading

import pytest

import atoll
from atoll.backends.wasm import build
from atoll.packages import progress
from atoll.packages.progress import Progress

FACTS = '{"python": [3, 14, 0], "cells": null}'
QUIET = Progress("test")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "wasm"


@pytest.fixture
def steps(monkeypatch):
    """The costly steps, replaced by ones that note that they ran."""
    done = []

    def componentize(target):
        done.append("build")
        (target / build.WASM).write_bytes(b"wasm")

    def run_part(module, *files):
        done.append(module)
        files[-1].touch()
        return FACTS

    monkeypatch.setattr(build, "_componentize", componentize)
    monkeypatch.setattr(build, "_run_part", run_part)
    return done


def test_it_is_built_once(empty_cache, steps):
    assert build.find() is None
    first = build.ensure(None, QUIET)
    assert build.ensure(None, QUIET) == first == build.find()
    assert steps == ["build", "engine", "inspect_component"]
    assert first.python == (3, 14, 0)


def test_a_failed_build_leaves_nothing(empty_cache, steps, monkeypatch):
    def fail(*_args):
        raise OSError("no room")

    monkeypatch.setattr(build, "_run_part", fail)
    with pytest.raises(OSError, match="no room"):
        build.ensure(None, QUIET)
    assert build.find() is None
    assert [path.suffix for path in empty_cache.iterdir()] == [".lock"]


def test_the_key_holds_the_sources_and_the_tools(empty_cache, monkeypatch):
    first = build._folder(None)
    monkeypatch.setattr(build.engine, "runtime_version", lambda: "other")
    assert build._folder(None) != first
    monkeypatch.undo()
    monkeypatch.setattr(build, "_sources", lambda: ("changed",))
    assert build._folder(None).name != first.name


def test_a_folder_that_others_can_write_is_not_trusted(empty_cache, steps):
    built = build.ensure(None, QUIET)
    build._found.clear()
    built.folder.chmod(0o777)
    with pytest.raises(atoll.SandboxStartError, match="can be written by others"):
        build.find()


def test_two_processes_build_once(tmp_path):
    """Both begin at once; the second waits for the first, and finds its work."""
    code = (
        "import sys, time; from pathlib import Path; from atoll.backends.wasm import build\n"
        "from atoll.packages.progress import Progress\n"
        "def componentize(target):\n"
        "    print('building', flush=True); time.sleep(1); (target / build.WASM).write_bytes(b'w')\n"
        "build._componentize = componentize\n"
        f"build._run_part = lambda module, *files: (files[-1].touch(), {FACTS!r})[1]\n"
        "print(build.ensure(None, Progress('t')).folder.is_dir())"
    )
    env = {**os.environ, "ATOLL_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
        for _ in range(2)
    ]
    said = sorted(process.communicate()[0].split() for process in both)
    assert said == [["True"], ["building", "True"]]


def test_a_bar_is_drawn_on_a_terminal_alone(monkeypatch):
    drawn = threading.Event()

    class Terminal(io.StringIO):
        def isatty(self):
            return True

        def flush(self):
            drawn.set()

    screen = Terminal()
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0)
    monkeypatch.setattr(progress.sys, "stderr", screen)
    with Progress("first use").step("compiling", 1.0):
        assert drawn.wait(60)
    assert "first use [" in screen.getvalue()
    assert "compiling" in screen.getvalue()
    monkeypatch.setattr(progress.sys, "stderr", silent := io.StringIO())
    with Progress("first use").step("compiling", 1.0):
        pass
    assert silent.getvalue() == ""

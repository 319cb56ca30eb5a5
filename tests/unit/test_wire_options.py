"""What a client's configuration becomes on the daemon's side."""

from __future__ import annotations

import os
import sys

import pytest

import atoll
from atoll.sandbox.wire import options


def received(python: str) -> str | None:
    data = options.to_wire(atoll.SandboxConfig())
    return options.from_wire({**data, "python": python, "interpreter": None}).python


@pytest.fixture
def venv(tmp_path, monkeypatch):
    """A folder with one interpreter under two names, the second of which runs the daemon."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / "python3").symlink_to("python")
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    return folder


def test_another_name_of_the_daemons_interpreter_is_its_own(venv):
    assert received(str(venv / "python3")) is None
    assert received(str(venv / "python")) is None


def test_the_same_program_in_another_venv_is_another_interpreter(venv, tmp_path):
    other = tmp_path / "other" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(os.path.realpath(sys.executable))
    assert received(str(other)) == str(other)


def test_the_clients_own_interpreter_is_known_by_what_it_is(monkeypatch):
    """Whatever name either of them was started by: base executable, version and prefix decide."""
    data = options.to_wire(atoll.SandboxConfig())
    monkeypatch.setattr(sys, "executable", "/somewhere/else/python3.1")
    assert options.from_wire(data).python is None
    for forged in ([], None, "x", [*data["interpreter"][:2], "/other"], {"a": 1}):
        assert options.from_wire({**data, "interpreter": forged}).python == data["python"]


def test_an_interpreter_that_does_not_exist_is_passed_on(venv):
    assert received(str(venv / "python2")) == str(venv / "python2")

"""Hints name a command that works, from wherever Atoll was installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atoll import extras

ROOT = Path(__file__).resolve().parents[2]
ASK = "import sys; from atoll import extras; print(extras.install_command(sys.argv[1]))"


def test_the_command_names_the_interpreter_and_the_packages():
    command = f"{sys.executable} -m pip install 'cloudpickle>=3.0' 'lz4>=4.3'"
    assert extras.install_command("state") == command
    assert extras.hint("state") == f"Type: {command}"


def test_an_extra_of_extras_is_resolved_to_packages():
    found = extras.requirements("agent")
    assert set(extras.requirements("search")) < set(found)
    assert not [one for one in found if one.startswith("atoll")]


def test_the_installed_metadata_gives_the_same_packages_as_the_source_tree():
    def names(packages):
        return {one.lower().split(">")[0].split("<")[0] for one in packages}

    installed = extras._installed_table()
    for extra in ("state", "search", "wasm", "pyodide", "web"):
        assert names(installed[extra]) == names(extras.requirements(extra))


def test_an_interpreter_without_pip_gets_it_first(monkeypatch):
    monkeypatch.setattr(
        extras.importlib.util, "find_spec", lambda name: None if name == "pip" else name
    )
    begin = f"{sys.executable} -m ensurepip && {sys.executable} -m pip install 'deno"
    assert extras.install_command("pyodide").startswith(begin)


def test_an_interpreter_that_cannot_have_pip_is_served_by_uv(monkeypatch):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda _: None)
    begin = f"uv pip install --python {sys.executable} 'deno"
    assert extras.install_command("pyodide").startswith(begin)


def test_a_source_tree_on_the_path_gives_the_command_without_being_installed(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", ASK, "pyodide"],
        env={"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
    )
    assert "install" in done.stdout, done.stderr
    assert "'deno>=" in done.stdout


@pytest.mark.parametrize("place", ["src", "tools"])
def test_no_hint_names_a_package_that_no_index_has(place):
    found = [
        f"{file.name}: {line.strip()}"
        for file in (ROOT / place).rglob("*.py")
        if file.name != "extras.py"
        for line in file.read_text().splitlines()
        if "pip install" in line and "atoll[" in line
    ]
    assert found == []


def test_the_names_of_extras_are_normalised_so_that_every_pip_finds_them():
    """Build tools normalise names in the metadata; pip before 23.3 compares the text as typed."""
    for name in extras._table():
        assert name == re.sub(r"[-_.]+", "-", name).lower()

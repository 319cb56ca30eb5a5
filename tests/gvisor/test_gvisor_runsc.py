"""Which runsc is used, and what is said where there is none."""

from __future__ import annotations

import pytest

import atoll
from atoll.backends import registry
from atoll.backends.gvisor import report, runsc
from atoll.errors import BackendUnavailableError

NEW = "which platform to use: systrap (default), ptrace, kvm."
OLD = "which platform to use: ptrace (default), kvm."
FLAGS = "  -network value\n\tx\n  -root string\n\tx\n  -platform string\n\tspecifies "


def fake(folder, text):
    """A program that answers as runsc does."""
    path = folder / "runsc"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def answers(flags, first="runsc version 1.2"):
    return f"case $1 in --version) echo '{first}';; flags) echo '{flags}' >&2;; esac"


def test_it_is_the_one_that_the_environment_names(tmp_path, monkeypatch):
    path = fake(tmp_path, answers(FLAGS + NEW))
    monkeypatch.setenv("ATOLL_RUNSC", str(path))
    found = runsc.find()
    assert (found.path, found.version) == (str(path), "1.2")
    assert found.platforms == ("systrap", "ptrace")


def test_it_is_found_on_path_and_kvm_is_not_used(tmp_path, monkeypatch):
    fake(tmp_path, answers(FLAGS + OLD))
    monkeypatch.delenv("ATOLL_RUNSC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert runsc.find().platforms == ("ptrace",)


def test_only_flags_that_it_knows_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_RUNSC", str(fake(tmp_path, answers(FLAGS + NEW))))
    command = runsc.find().command("/there/runsc", "systrap", "run", "name")
    assert command[0] == "/there/runsc"
    assert set(command[1:-2]) == {"--root=/run/state", "--platform=systrap", "--network=none"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (answers(FLAGS + NEW, "crun version 1"), "is not runsc: it says 'crun version 1'"),
        (answers("which platform to use: kvm (default)."), "none of the platforms systrap, ptrace"),
        ("exit 3", "does not run"),
    ],
)
def test_another_program_is_refused_in_words(tmp_path, monkeypatch, text, words):
    monkeypatch.setenv("ATOLL_RUNSC", str(fake(tmp_path, text)))
    with pytest.raises(BackendUnavailableError, match=words):
        runsc.find()


def test_a_variable_that_names_nothing_is_to_be_mended_or_unset(monkeypatch):
    monkeypatch.setenv("ATOLL_RUNSC", "/nowhere/runsc")
    words = "names '/nowhere/runsc', which cannot be run. Let .ATOLL_RUNSC name a runsc, or unset"
    with pytest.raises(BackendUnavailableError, match=words):
        runsc.find()


def test_a_script_in_its_place_is_refused_in_words(tmp_path, monkeypatch):
    path = fake(tmp_path, answers(FLAGS + OLD))
    monkeypatch.setenv("ATOLL_RUNSC", str(path))
    for wanted in ({"backend": "gvisor"}, {"min_isolation": "kernel"}):
        with pytest.raises(BackendUnavailableError, match=f"{path} is a script, and a jail has no"):
            atoll.create_sandbox(**wanted)


@pytest.mark.usefixtures("gvisor_here")
def test_a_runsc_that_fails_when_it_starts_is_told_with_its_own_words(monkeypatch):
    command = runsc.Runsc.command
    monkeypatch.setattr(report, "_found", {})
    monkeypatch.setattr(
        runsc.Runsc, "command", lambda one, path, _, *rest: command(one, path, "odd", *rest)
    )
    with pytest.raises(BackendUnavailableError, match=r"(?s)runsc fails: .*platform.*odd"):
        atoll.create_sandbox(backend="gvisor")


@pytest.fixture
def no_runsc(monkeypatch):
    monkeypatch.delenv("ATOLL_RUNSC", raising=False)
    monkeypatch.setattr(runsc.shutil, "which", lambda _name: None)


@pytest.mark.usefixtures("no_runsc")
def test_without_runsc_the_level_fails_with_what_to_type():
    with pytest.raises(atoll.IsolationError) as raised:
        atoll.create_sandbox(min_isolation="kernel")
    assert "no backend offers kernel" in str(raised.value)
    assert "`apt-get install runsc`" in str(raised.value)
    with pytest.raises(BackendUnavailableError, match="apt-get install runsc"):
        atoll.create_sandbox(backend="gvisor")


@pytest.mark.usefixtures("no_runsc")
async def test_without_runsc_doctor_says_how_to_install_it():
    found = await registry.load("gvisor").availability(atoll.SandboxConfig())
    assert (found.usable, found.reason) == (False, "runsc is not installed")
    assert "apt-get install runsc" in found.hint


async def test_a_platform_that_fails_gives_way_to_the_next(monkeypatch):
    found = runsc.Runsc("/none", "1", ("systrap", "ptrace"), frozenset())

    async def attempt(_runsc, name):
        return "no ptrace here" if name == "systrap" else ""

    monkeypatch.setattr(report, "_try", attempt)
    monkeypatch.setattr(report, "_found", {})
    assert await report.platform(found) == "ptrace"


async def test_where_no_platform_works_each_says_why(monkeypatch):
    found = runsc.Runsc("/none", "2", ("systrap", "ptrace"), frozenset())

    async def attempt(_runsc, name):
        return f"no {name} here"

    monkeypatch.setattr(report, "_try", attempt)
    words = "runsc fails: systrap: no systrap here; ptrace: no ptrace here"
    with pytest.raises(BackendUnavailableError, match=words):
        await report.platform(found)


def test_no_weaker_and_no_other_backend_stands_in_for_the_level():
    with pytest.raises(atoll.IsolationError, match="kernel was asked for, and it offers jailed"):
        atoll.create_sandbox(backend="native", min_isolation="kernel")
    assert atoll.Isolation.JAILED < atoll.Isolation.KERNEL < atoll.Isolation.VIRTUAL


@pytest.mark.usefixtures("gvisor_here")
async def test_auto_takes_it_for_its_level_alone():
    asked = await registry.choose(atoll.SandboxConfig(min_isolation="kernel"))
    assert asked.backend == "gvisor"
    assert (await registry.choose(atoll.SandboxConfig())).backend != "gvisor"
    virtual = await registry.choose(atoll.SandboxConfig(min_isolation="virtual"))
    assert virtual.backend != "gvisor"


@pytest.mark.usefixtures("gvisor_here")
async def test_doctor_names_version_platform_and_limits():
    found = await registry.load("gvisor").availability(atoll.SandboxConfig())
    assert (found.usable, found.isolation) == (True, atoll.Isolation.KERNEL)
    assert runsc.find().version in found.details["runsc"]
    assert found.details["platform"].split()[0] in runsc.PREFERRED
    assert set(found.limits) == {
        "time", "memory", "processes", "cpu", "disk", "file size", "output"
    }  # fmt: skip


@pytest.mark.usefixtures("gvisor_here")
def test_more_than_it_is_is_refused():
    with pytest.raises(atoll.IsolationError, match="virtual was asked for, and gVisor offers"):
        atoll.create_sandbox(backend="gvisor", min_isolation="virtual")

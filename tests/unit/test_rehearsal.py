"""A zygote rehearses what its guests will do: the code is specialised, and nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from atoll.guest.core import private
from atoll.jail.zygote import after_fork

LOOK = """
import dis, json, os, resource, signal, sys
limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
def look():
    with open("/proc/self/status") as file:
        status = [line for line in file if line.startswith(("Uid", "Gid", "Cap", "NoNew", "Secc"))]
    streams = [os.readlink("/proc/self/fd/" + fd) for fd in "012"]
    return {
        "status": status,
        "namespaces": [os.readlink("/proc/self/ns/" + kind) for kind in os.listdir("/proc/self/ns")],
        "mounts": open("/proc/self/mountinfo").read(),
        "limits": [resource.getrlimit(getattr(resource, name)) for name in limits],
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGCHLD, signal.SIGTERM)],
        "folder": os.getcwd(), "session": os.getsid(0), "open": len(os.listdir("/proc/self/fd")),
        "streams": streams, "main": id(sys.modules["__main__"]),
    }
def specialised(function):
    names = {one.opname for one in dis.get_instructions(function, adaptive=True)}
    return sorted(names - set(dis.opmap))
"""
STEPS = """
from atoll.jail.zygote import after_fork, fork_guest; from atoll.jail.walls import steps
def role(_settings): return None, ()
steps.prepare_forked()
template = fork_guest.GuestTemplate({}, after_fork.LibraryHooks(), "__main__:role")
before = look()
template.rehearse()
code = [specialised(one) for one in (steps.take, steps.mount_own_proc, steps.set_rlimits)]
"""
CELLS = """
import atoll.guest.__main__ as start, atoll.guest.entry.server as server
guest = start.Guest(os.getcwd())
before = look()
guest.rehearse()
guest.settle()
code = [specialised(server.Server.answer), specialised(server.Server._execute)]
own = vars(guest)["_server"]._repl
assert (own._count, own.namespace.get("_"), own._sources.kept) == (0, None, {}), vars(own)
"""


@pytest.mark.parametrize("work", [STEPS, CELLS], ids=["steps", "cells"])
def test_a_rehearsal_specialises_code_and_changes_nothing_else(work, tmp_path):
    code = f"{LOOK}{work}json.dump([before, look(), code], open('seen', 'w'))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    before, after, code = json.loads((tmp_path / "seen").read_text())
    assert after == before
    assert all(code), code  # each has instructions that no compiler writes


def test_functions_with_effects_are_back_after_a_rehearsal_that_fails():
    real = os.close, os.setresuid

    def fail() -> None:
        assert os.close(-1) == os.setresuid(0, 0, 0) == 0
        raise KeyError

    with pytest.raises(KeyError):
        after_fork.rehearse(fail)
    assert (os.close, os.setresuid) == real


def test_a_rehearsal_has_no_effect_through_a_copy_of_a_module_that_the_runtime_has():
    copied = private._copy(os)
    after_fork.rehearse(lambda: copied.chdir("/no such folder"))
    with pytest.raises(FileNotFoundError):
        copied.chdir("/no such folder")

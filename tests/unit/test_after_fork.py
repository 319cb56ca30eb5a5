"""What a zygote's fork leaves out: tried in processes of their own, whose fork hooks stay."""

from __future__ import annotations

import subprocess
import sys

import pytest

HOOKS = """
import os
from atoll.jail.zygote.after_fork import LibraryHooks

def module(name):
    code = '''
import os
os.register_at_fork(before=lambda: said.append(name + " before"),
    after_in_parent=lambda: said.append(name + " parent"),
    after_in_child=lambda: said.append(name + " child"))
'''
    exec(code, {"__name__": name, "name": name, "said": said})

def fork():
    said.clear()
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, repr(said).encode())
        os._exit(0)
    os.wait()
    print(os.read(read, 1000).decode(), said)

said, hooks = [], LibraryHooks()
hooks.collect()
for name in ("threading", "logging", "other"):
    module(name)
"""
NUMPY = """
import os, sys
import numpy
from atoll.jail.zygote.after_fork import numpy_reseeder
numpy.random.normal()
reseed = numpy_reseeder()
"""


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_zygote_forks_without_the_hooks_that_only_reset_locks():
    lines = run(HOOKS + "hooks.sleep()\nfork()")
    assert lines == ["['other before', 'other child'] ['other before', 'other parent']"]


def test_a_fork_in_a_guest_runs_every_hook_in_order():
    (line,) = run(HOOKS + "hooks.sleep()\nhooks.wake()\nfork()")
    before = "'other before', 'logging before', 'threading before'"
    child = "'threading child', 'logging child', 'other child'"
    parent = "'threading parent', 'logging parent', 'other parent'"
    assert line == f"[{before}, {child}] [{before}, {parent}]"


def test_hooks_are_registered_as_always_once_the_zygote_serves():
    code = "hooks.sleep()\nsaid.clear()\nmodule('threading')\nfork()\nprint(os.register_at_fork is __import__('posix').register_at_fork)"
    lines = run(HOOKS + code)
    assert "threading child" in lines[0]
    assert lines[1] == "True"


def test_the_reseeded_generator_of_numpy_draws_evenly_and_never_the_same():
    pytest.importorskip("numpy")
    code = """
first = numpy.random.rand(10_000)
reseed()
second = numpy.random.rand(10_000)
print(reseed is not numpy.random.seed, len({*first, *second}),
      0.48 < second.mean() < 0.52, numpy.random.get_state()[3])
"""
    assert run(NUMPY + code) == ["True 20000 True 0"]


def test_a_numpy_whose_state_cannot_be_written_is_seeded_as_numpy_does():
    pytest.importorskip("numpy")
    code = """
del numpy.random.get_bit_generator
print(numpy_reseeder() == numpy.random.seed)
numpy.random.set_state(numpy.random.RandomState(1).get_state())
"""
    assert run(NUMPY + code) == ["True"]


def test_random_is_reseeded_without_its_hook():
    code = """
import random
from atoll.jail.zygote.after_fork import random_reseeder
random.gauss(0, 1)
reseed = random_reseeder()
print(vars(random)["_inst"].gauss_next)
print(len({(reseed(), random.random()) for _ in range(8)}))
"""
    assert run(code) == ["None", "8"]

"""How a zygote arranges its memory: tried in processes of their own, which it changes for good."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

REGIONS = """
from atoll.jail.zygote import zygote_memory as memory
def regions(least):
    return [one for one in memory.mappings()
            if one.mode == "rw-p" and one.file == "0 00:00" and one.end - one.start >= least]
"""


def run(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", REGIONS + code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
        timeout=60,
    )
    return done.stdout.strip()


def test_reserved_arenas_lie_together():
    assert run("kept = memory.reserve_arenas(16 << 20); print(len(regions(15 << 20)))") == "1"


def test_what_was_reserved_and_is_not_used_is_freed():
    code = """
kept = memory.reserve_arenas(32 << 20)
before = sum(one.end - one.start for one in regions(1 << 20))
kept.clear()
print(before - sum(one.end - one.start for one in regions(1 << 20)) > 24 << 20)
"""
    assert run(code) == "True"


def test_new_objects_lie_together_when_the_gaps_are_filled():
    code = """
gappy = [bytes(100) for _ in range(100_000)][::7]
memory.fill_pools()
new = [bytes(100) for _ in range(20)]
print(max(map(id, new)) - min(map(id, new)) < memory._POOL)
"""
    assert run(code) == "True"


@pytest.mark.parametrize("allocator", ["malloc", "malloc_debug", "pymalloc_debug"])
def test_the_heap_of_another_allocator_is_left_alone(allocator):
    """Its blocks never lie as pools are filled, so filling them would go on without end."""
    code = """
import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
memory.fill_pools()
print(memory.is_pymalloc(), len(memory._fillers), len(memory.reserve_arenas(1 << 20)))
"""
    assert run(code, PYTHONMALLOC=allocator) == "False 0 0"


def test_gaps_without_end_are_filled_up_to_a_limit():
    code = """
memory.is_pymalloc = lambda: True
memory.fill_pools(most=1 << 20)
print(len(memory._fillers) * 32 <= 1 << 20)
"""
    assert run(code, PYTHONMALLOC="malloc_debug") == "True"


def test_mappings_of_a_library_become_fewer_and_it_still_works():
    code = """
import json, math, ctypes, hashlib
merged = memory.merge_mappings()
libraries = [one for one in memory.mappings() if "libc.so" in one.file]
print(merged > 0, {one.mode for one in libraries} <= {"r-xp", "rw-p", "---p", "r--p"},
      json.loads("[1]"), math.sqrt(4), hashlib.sha256(b"").hexdigest()[:4],
      ctypes.CDLL(None).getpid() > 0)
"""
    assert run(code) == "True True [1] 2.0 e3b0 True"


def test_memory_that_nobody_used_is_not_filled():
    code = """
import mmap
empty = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE
before = resident()
memory.collapse_heaps()
print(resident() - before < 8 << 20)
"""
    assert run(code) == "True"

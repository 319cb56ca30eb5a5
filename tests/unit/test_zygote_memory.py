"""How a zygote arranges its memory: tried in processes of their own, which it changes for good."""

from __future__ import annotations

import subprocess
import sys

REGIONS = """
from atoll.jail.zygote import zygote_memory as memory
def regions(least):
    return [one for one in memory.mappings()
            if one.mode == "rw-p" and one.file == "0 00:00" and one.end - one.start >= least]
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", REGIONS + code], capture_output=True, text=True, check=True
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

"""Memory that long-lived processes have freed goes back to the kernel."""

from __future__ import annotations

import platform

import pytest
from memory_store import MemoryStateStore

from atoll.hosting import heap, session_table
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.session_table import SessionTable
from atoll.hosting.sessions import Storage

SIZE, COUNT = 5_000, 10_000


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_free_memory_between_what_is_in_use_is_given_back():
    blocks = [bytes([1]) * SIZE for _ in range(COUNT)]
    kept = blocks[::10]
    before = resident()
    del blocks
    heap.give_back()
    assert before - resident() > SIZE * COUNT // 2
    assert len(kept) == COUNT // 10


async def test_a_sweep_gives_memory_back_now_and_then(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(heap, "give_back", lambda: calls.append(1))
    table = SessionTable(None, Storage(store=MemoryStateStore(60, 1000)), DaemonLimits())
    await table.sweep()
    assert calls == []
    monkeypatch.setattr(session_table, "GIVE_BACK_SECONDS", -1.0)
    await table.sweep()
    assert calls == [1]

"""Watches of folders share few inotify instances, and no owner can use up what others need."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.concurrency.shares import acting_for
from atoll.files import inotify
from atoll.files.watch import MAX_DEPTH, Change, Watch


@pytest.fixture
def folder(tmp_path: Path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def instances() -> int:
    """How many inotify instances this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify"
        except OSError:
            continue
    return found


async def first(watch: Watch, wanted: Change) -> None:
    async def look() -> None:
        async for changes in watch.changes(5):
            if wanted in changes:
                return

    await asyncio.wait_for(look(), 30)


async def until(reached: Callable[[], bool]) -> None:
    for _ in range(3000):
        if reached():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it was never so")


async def test_many_watches_of_one_owner_take_one_instance(folder, tmp_path):
    before = instances()
    with acting_for("a"):
        watches = [await Watch.below(folder, ".") for _ in range(20)]
    assert instances() == before + 1
    (tmp_path / "x").touch()
    for watch in watches:
        await first(watch, Change("x", "created"))
    watches.pop().close()
    (tmp_path / "y").touch()
    await first(watches[0], Change("y", "created"))  # which the closed one watched too
    for watch in watches:
        watch.close()
        watch.close()
    assert instances() == before


async def test_owners_past_the_number_of_instances_share_one(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(inotify, "MAX_INSTANCES", 2)
    before, watches = instances(), []
    for owner in range(5):
        with acting_for(f"owner {owner}"):
            watches.append(await Watch.below(folder, "."))
    assert instances() == before + 3
    (tmp_path / "x").touch()
    for watch in watches:
        await first(watch, Change("x", "created"))
        watch.close()
    assert instances() == before


async def test_an_owner_with_too_many_watches_is_refused_and_others_are_not(folder, monkeypatch):
    monkeypatch.setattr(inotify, "MAX_WATCHES", 3)
    with acting_for("a"):
        watches = [await Watch.below(folder, ".") for _ in range(3)]
        with pytest.raises(inotify.TooManyWatchesError, match="3 folders are watched"):
            await Watch.below(folder, ".")
        watches.pop().close()
        watches.append(await Watch.below(folder, "."))
    with acting_for("b"), await Watch.below(folder, "."):
        pass
    for watch in watches:
        watch.close()


async def test_folders_of_one_owner_are_bounded_and_counted_down(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(inotify, "MAX_FOLDERS", 4)
    for name in "abcdef":
        (tmp_path / name).mkdir()
    with acting_for("a"):
        with await Watch.below(folder, ".", recursive=True) as watch:
            assert await anext(watch.changes(0)) == [Change("", "lost")]
            with pytest.raises(inotify.TooManyWatchesError):
                await Watch.below(folder, ".")
        with await Watch.below(folder, "."):
            pass


async def test_deleted_folders_do_not_count_on(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(inotify, "MAX_FOLDERS", 2)
    with acting_for("a"), await Watch.below(folder, ".", recursive=True) as watch:
        for number in range(6):
            inner = tmp_path / str(number)
            inner.mkdir()
            await first(watch, Change(str(number), "created", is_dir=True))
            await until(lambda: watch._lease.folders == 2)
            (inner / "x").touch()
            await first(watch, Change(f"{number}/x", "created"))
            (inner / "x").unlink()
            inner.rmdir()
            await until(lambda: watch._lease.folders == 1)


async def test_folders_nested_too_deeply_are_not_looked_into(folder, tmp_path):
    here = os.dup(folder)
    for _ in range(MAX_DEPTH + 10):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    with await Watch.below(folder, ".", recursive=True) as watch:
        assert await anext(watch.changes(0)) == [Change("", "lost")]
        (tmp_path / "d/d/d/x").touch()
        await first(watch, Change("d/d/d/x", "created"))


async def test_a_watch_can_be_closed_while_a_thread_looks_into_folders(folder, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        (tmp_path / str(number)).mkdir()
    task = asyncio.create_task(Watch.below(folder, ".", recursive=True))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await until(lambda: len(os.listdir("/proc/self/fd")) == before)


async def test_a_new_folder_is_told_of_when_it_is_watched(folder, tmp_path, monkeypatch):
    """However long the thread takes: who hears of a folder counts on hearing of its files."""
    scan = Watch._scan

    def slow(watch: Watch) -> None:
        time.sleep(0.3)
        scan(watch)

    with await Watch.below(folder, ".", recursive=True) as watch:
        monkeypatch.setattr(Watch, "_scan", slow)
        (tmp_path / "a").mkdir()
        await first(watch, Change("a", "created", is_dir=True))
        (tmp_path / "a/x").touch()
        (tmp_path / "a/x").unlink()
        await first(watch, Change("a/x", "deleted"))

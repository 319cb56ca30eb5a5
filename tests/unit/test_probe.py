"""A passing fault of the host is not taken for its nature."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest

from atoll.jail.measure import probe
from atoll.jail.supervisor import client
from atoll.policy import Isolation

BIND_A_REPLACED_FILE = """
import os, sys
from pathlib import Path
from atoll.jail.supervisor.spec import Bind
from atoll.jail.walls import binds, syscalls, users
folder = Path(sys.argv[1])
source, target = folder / "source", folder / "target"
source.write_text("old"), target.touch()
users.enter_own_user_namespace()
syscalls.unshare(0x20000)  # CLONE_NEWNS
fd = os.open(source, os.O_PATH)
(folder / "new").write_text("new")
(folder / "new").rename(source)
binds._bind(Bind(source=str(source), target=""), fd, str(target))
print(target.read_text())
"""


def test_system_file_replaced_during_the_start_is_bound_in_its_new_form(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BIND_A_REPLACED_FILE, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "new\n", done.stderr


async def test_failed_probe_is_made_again_and_a_good_one_is_kept(monkeypatch):
    levels = iter([Isolation.CONFINED, Isolation.JAILED])

    async def examine():
        level = next(levels)
        failure = "" if level is Isolation.JAILED else "a passing fault"
        return probe.HostReport(
            level=level, failure=failure, landlock=0, cgroup_version=None, switches_user=False
        )

    monkeypatch.setattr(probe, "_examine", examine)
    monkeypatch.setattr(probe, "_cached", None)
    monkeypatch.setattr(probe, "_cached_until", 0.0)
    monkeypatch.setattr(probe, "FAILURE_SECONDS", -1.0)
    assert (await probe.host()).level is Isolation.CONFINED
    assert (await probe.host()).level is Isolation.JAILED
    assert (await probe.host()).level is Isolation.JAILED


async def test_cancelled_probe_lets_go_of_its_jail():
    leases = []

    def request(spec, fds):
        leases.append(client.request(spec, fds))
        return leases[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "client", SimpleNamespace(request=request))
        work = asyncio.create_task(probe._examine())
        while not leases:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert leases[0]._socket.fileno() < 0

"""A caller that is cancelled while a sandbox ends leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

import atoll
from atoll.backends.remote import connection
from atoll.hosting.pool import Pool, PooledSandbox


async def opened(**options):
    return await atoll.aio.create_sandbox(backend="native", **options)


async def cancelled(work):
    """Let `work` begin, then cancel it."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_destroy_closes_the_proxy_of_the_network():
    box = await opened(network=["a.test"])
    gateway = box._guest.network._gateway
    listener, lease = gateway._listener, box._guest.lease
    await cancelled(box.destroy())
    assert listener.fileno() < 0
    assert gateway._threads._shutdown
    await asyncio.wait_for(asyncio.shield(lease.ended), 30)


async def test_a_destroy_that_is_cancelled_while_a_cell_runs_still_ends_the_guest():
    box = await opened()
    begun = asyncio.Event()
    await box.add_tool(begun.set, name="begin")
    lease = box._guest.lease
    cell = asyncio.ensure_future(box.execute("import time; begin(); time.sleep(600)"))
    await begun.wait()
    await cancelled(box.destroy())
    assert not (await cell).success
    await asyncio.wait_for(asyncio.shield(lease.ended), 30)


async def test_a_pool_is_closed_after_the_sandbox_of_a_cancelled_run(monkeypatch):
    pool = Pool()
    ending, may_end, ended = asyncio.Event(), asyncio.Event(), []

    async def run(_box, _code, _timeout):
        return None

    async def destroy(box):
        ending.set()
        await may_end.wait()
        ended.append(box)

    monkeypatch.setattr(PooledSandbox, "run", run)
    monkeypatch.setattr(PooledSandbox, "destroy", destroy)
    config = atoll.SandboxConfig(preload="bare")
    running = asyncio.ensure_future(pool.run("1", config, wait_for_end=True))
    await ending.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    closing = asyncio.ensure_future(pool.close())
    await asyncio.sleep(0)
    may_end.set()
    await closing
    assert len(ended) == 1


class Client:
    """A connection to a service that answers nothing."""

    made = closed = 0

    def __init__(self, _url, _key):
        type(self).made += 1
        self.users = 0

    async def call(self, *_args):
        await asyncio.Event().wait()

    async def close(self):
        type(self).closed += 1


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(connection, "RemoteConnection", Client)
    monkeypatch.setattr(Client, "made", 0)
    monkeypatch.setattr(Client, "closed", 0)
    return atoll.SandboxConfig(backend="remote", url="http://127.0.0.1:1", api_key="k")


async def test_sandboxes_of_one_service_make_one_client(client):
    first, second = connection.take(client), connection.take(client)
    assert first is second
    await connection.release(first)
    assert (Client.made, Client.closed) == (1, 0)
    await connection.release(second)
    assert (Client.made, Client.closed) == (1, 1)


async def test_a_cancelled_destroy_closes_the_connection_to_a_service(client):
    from atoll.backends.remote import RemoteSandbox

    box = RemoteSandbox(client)
    box._connection, box.session = connection.take(client), "s"
    await cancelled(box.destroy())
    assert Client.closed == 1


REAPS = """
import os, socket
from atoll.jail.zygote.main import Zygote
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
zygote = Zygote(theirs, theirs, None)
pids = [os.fork() or os._exit(3) for _ in range(2)]
for pid in pids:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
zygote._guests[pids[1]] = 7, os.open("/dev/null", os.O_RDONLY)
zygote._reap()
print(ours.recv(1000).decode())
"""


def test_a_zygote_outlives_a_child_that_a_preloaded_library_has_started():
    done = subprocess.run(
        [sys.executable, "-c", REAPS],
        timeout=60,
        capture_output=True,
        text=True,
        env={**os.environ},
    )
    assert done.stdout.startswith('{"kind": "ended", "number": 7'), done.stderr

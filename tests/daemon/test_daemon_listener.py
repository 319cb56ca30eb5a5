"""A socket where the daemon's should be, bound by somebody else: no client speaks to it."""

from __future__ import annotations

import asyncio
import os

import pytest

import atoll
from atoll.backends.daemon import DaemonClientSandbox
from atoll.rpc import peer_check

PLAY_DAEMON = """
import socket, threading
sock = socket.socket(socket.AF_UNIX)
sock.bind('/app/daemon.sock')
sock.listen()
heard = []
def serve():
    while True:
        peer, _ = sock.accept()
        heard.append(peer.recv(65536))
threading.Thread(target=serve, daemon=True).start()
"""


async def test_a_guest_cannot_play_daemon(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(tmp_path / "daemon.sock"))
    async with atoll.aio.create_sandbox(backend="native", workspace=tmp_path) as guest:
        assert (await guest.execute(PLAY_DAEMON)).success
        (tmp_path / "daemon.sock").chmod(0o777)
        with pytest.raises(atoll.BackendUnavailableError, match="is not your daemon: it "):
            await atoll.aio.create_sandbox(backend="daemon")
        found = await DaemonClientSandbox.availability(atoll.SandboxConfig())
        assert not found.usable
        assert (await guest.execute("heard")).value in ([], [b""] * 2, [b""])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda patch: patch.setattr(os, "geteuid", lambda: 4242), "belongs to user"),
        (
            lambda patch: patch.setattr(peer_check, "_namespace", lambda pid, _kind: (0, str(pid))),
            "lives in other namespaces",
        ),
        (
            lambda patch: patch.setattr(peer_check, "_namespace", _fails),
            "namespaces cannot be read",
        ),
    ],
)
async def test_both_ends_refuse_the_same(tmp_path, monkeypatch, change, why):
    path = str(tmp_path / "a.sock")
    server = await asyncio.start_unix_server(lambda _r, writer: writer.close(), path)
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", path)
    change(monkeypatch)
    with pytest.raises(atoll.BackendUnavailableError, match=why):
        await atoll.aio.create_sandbox(backend="daemon")
    server.close()


def _fails(_pid, _kind):
    raise PermissionError

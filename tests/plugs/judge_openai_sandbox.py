"""The OpenAI Agents SDK's sandbox interface: a session's verbs, files, terminals and ports."""

from __future__ import annotations

import asyncio
import io
import time
import urllib.request
from pathlib import Path

import pytest
from agents.sandbox import Manifest
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    PtySessionNotFoundError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.snapshot import LocalSnapshotSpec

from atoll.integrations.openai_sandbox import AtollSandboxClient, AtollSandboxClientOptions

SERVE = "import http.server as h; h.HTTPServer(('127.0.0.1', 8000), h.SimpleHTTPRequestHandler).serve_forever()"


@pytest.fixture
async def session():
    client = AtollSandboxClient()
    manifest = Manifest(
        entries={"notes/a.txt": File(content=b"seed")}, environment={"value": {"G": "hi"}}
    )
    options = AtollSandboxClientOptions(exposed_ports=(8000,))
    made = await client.create(manifest=manifest, options=options)
    async with made:
        yield made
    await client.delete(made)


async def test_commands_and_files_are_the_sandboxs(session):
    done = await session.exec("cat notes/a.txt; echo $G; id -u; exit 3")
    assert (done.stdout, done.exit_code) == (b"seedhi\n1000\n", 3)
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 60", timeout=0.5)
    await session.write(Path("b.bin"), io.BytesIO(b"\x00\xff"))
    assert (await session.read(Path("b.bin"))).read() == b"\x00\xff"
    assert sorted(Path(one.path).name for one in await session.ls(".")) == ["b.bin", "notes"]
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("missing"))


async def test_a_terminal_is_written_to_and_ends(session):
    started = await session.pty_exec_start("read line; echo got $line", tty=True, yield_time_s=0.3)
    assert started.exit_code is None
    seen, until = b"", time.monotonic() + 60
    update = await session.pty_write_stdin(session_id=started.process_id, chars="this\n")
    while update.exit_code is None and time.monotonic() < until:
        seen += update.output
        update = await session.pty_write_stdin(session_id=started.process_id, chars="")
    assert b"got this" in seen + update.output
    with pytest.raises(PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=started.process_id, chars="")


async def test_a_port_is_reached(session):
    await session.pty_exec_start("python3", "-c", SERVE, shell=False, yield_time_s=0.3)
    url = (await session.resolve_exposed_port(8000)).url_for("http")
    until = time.monotonic() + 60
    while True:
        try:
            assert b"notes" in await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
            break
        except OSError:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)


async def test_a_session_is_resumed_from_its_snapshot_in_a_new_sandbox(tmp_path):
    client = AtollSandboxClient()
    made = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path), manifest=Manifest())
    async with made:
        await made.exec("echo kept > note; mkdir deep; ln -s ../note deep/link")
    payload = client.serialize_session_state(made.state)
    await client.delete(made)
    again = await client.resume(client.deserialize_session_state(payload))
    async with again:
        assert (await again.exec("cat deep/link")).stdout == b"kept\n"
    await client.delete(again)

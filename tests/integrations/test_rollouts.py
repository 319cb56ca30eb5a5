"""A sandbox as frameworks for training use it: commands, files, folders, ports, and its end."""

from __future__ import annotations

import asyncio
import time
import urllib.request

import pytest

from atoll.errors import ConfigError
from atoll.integrations import rollouts
from atoll.integrations.rollouts import RolloutBox, Wanted

SERVE = "import http.server as h; h.HTTPServer(('127.0.0.1', 8000), h.SimpleHTTPRequestHandler).serve_forever()"


@pytest.fixture
async def box():
    folders = ["/logs/agent", "/tests", "/home/user/work"]
    made = await RolloutBox.open(Wanted(folders=folders, options={"backend": "native"}))
    yield made
    await made.close()


async def test_commands_run_beside_each_other_and_keep_their_bytes(box):
    await box.run("mkfifo pipe")
    read, written = await asyncio.gather(
        box.run("cat pipe; echo bad >&2; exit 7"), box.run("printf 'a\\377' > pipe", user="root")
    )
    assert (read.stdout, read.err, read.exit_code) == (b"a\xff", "bad\n", 7)
    assert written.exit_code == 0
    assert (await box.run(["wc", "-c"], stdin=b"x" * 300_000)).out == "300000\n"


async def test_a_command_that_takes_too_long_is_killed_with_its_group(box):
    done = await box.run("echo so far; sleep 600 & sleep 600", timeout=1)
    assert (done.timed_out, done.out) == (True, "so far\n")
    await _until_all_have_ended(box)


async def test_a_cancelled_call_kills_its_command(box):
    running = asyncio.create_task(box.run("touch /tmp/begun; sleep 600"))
    while (await box.run("test -e /tmp/begun")).exit_code:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await _until_all_have_ended(box)


async def _until_all_have_ended(box):
    until = time.monotonic() + 60
    while any(process.info.running for process in await rollouts.run(box.box.processes())):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def test_folders_of_a_task_are_writable_and_files_go_both_ways(box):
    assert (await box.run("touch /logs/agent/a /tests/b /home/user/work/c")).exit_code == 0
    await box.write("/tests/deep/test.sh", b"\x00\xff")
    await box.write("note", b"below the working folder")
    assert await box.read("/tests/deep/test.sh") == b"\x00\xff"
    assert await box.read("/app/note") == b"below the working folder"
    with pytest.raises(FileNotFoundError):
        await box.read("/tests/missing")
    with pytest.raises(PermissionError):
        await box.write("/usr/lib/x", b"")
    with pytest.raises(ConfigError, match="no user 'postgres'"):
        await box.run("true", user="postgres")


async def test_what_a_command_prints_beyond_the_limit_is_dropped(box, monkeypatch):
    monkeypatch.setattr(rollouts, "MAX_OUTPUT", 1000)
    done = await box.run("head -c 5000000 /dev/zero; echo end >&2")
    assert (len(done.stdout), done.err, done.exit_code) == (1000, "end\n", 0)


async def test_a_terminal_is_read_again_from_an_offset(box):
    shell = await box.start("stty size; read line; echo got $line", pty=(40, 100))
    assert b"40 100" in await shell.read(timeout_s=60)
    again = await box.attach(shell.id, None)
    await again.write(b"this\n")
    assert await again.wait(60) == 0
    seen = b"".join([piece.data async for piece in again.output()])
    assert b"got this" in seen
    assert b"40 100" not in seen
    whole = await box.attach(shell.id, 0)
    assert b"40 100" in await whole.read(timeout_s=60)


async def test_a_server_is_reached_on_the_port_that_was_asked_for(box, unused_tcp_port):
    await box.start(["python3", "-c", SERVE], stdin=False)
    await box.write("index.html", b"page")
    url = await box.url(8000, unused_tcp_port)
    assert url == f"http://127.0.0.1:{unused_tcp_port}"
    until = time.monotonic() + 60
    while True:
        try:
            answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
            break
        except OSError:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
    assert answer == b"page"


async def test_a_sandbox_that_has_ended_does_not_answer(box):
    assert await box.is_alive()
    await box.close()
    assert not await box.is_alive()

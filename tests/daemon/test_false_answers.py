"""What listens as the daemon and answers nonsense: each call ends in an error of ours, in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

import atoll
from atoll.backends.daemon import connection as connections

SILENT = 0.3
OPENED = {"isolation": "jailed", "context_shared": False}
NONSENSE = [
    None, True, 0, -1, 1.5, "", "x", [], [1], [[]], {}, {"result": 5}, {"result": {}},
    {"result": {"kind": "OK", "duration_ms": -1}}, {"result": {"kind": "OK", "stdout": 5}},
    {"result": {"kind": "OK", "files_created": ["/etc/passwd"]}},
    {"valid": "yes"}, {"mark": 5}, {"marks": 5}, {"marks": None}, {"names": 5}, {"names": ["/app"]},
    {"found": True}, {"found": True, "value": {"$": "no"}}, {"found": 1}, {"variables": [[1]]},
    {"set": "yes"}, {"isolation": "jailed"}, {"isolation": 5, "context_shared": False},
    {"isolation": "none", "context_shared": False}, {"isolation": "strong", "context_shared": 1},
]  # fmt: skip
REQUESTS = {
    "execute": lambda box: box.execute("1", timeout_ms=100),
    "shell": lambda box: box.shell("true"),
    "validate_code": lambda box: box.validate_code("1"),
    "get_variable": lambda box: box.get_variable("x"),
    "has_variable": lambda box: box.has_variable("x"),
    "variables": lambda box: box.variables(),
    "set_variable": lambda box: box.set_variable("x", 1),
    "add_tool": lambda box: box.add_tool(print),
    "cancel": lambda box: box.cancel(),
    "fork": lambda box: box.fork(),
    "checkpoint": lambda box: box.checkpoint(),
    "rollback": lambda box: box.rollback("mark"),
    "branches": lambda box: box.branches(),
    "save": lambda box: box.save(),
    "read": lambda box: box.files.read("/app/x"),
    "write": lambda box: box.files.write("/app/x", "text"),
    "initialize": lambda box: box.initialize("again"),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(connections, "SILENT_SECONDS", SILENT)


@pytest.fixture
async def play_daemon(tmp_path, monkeypatch):
    """A function that listens, opens sessions, and answers all else as `answer` says."""
    path, tasks = tmp_path / "false.sock", []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(path))

    def start(answer):
        async def serve(reader, writer):
            tasks.append(asyncio.current_task())
            try:
                with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                    await talk(reader, writer)
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(1):  # the client may have stopped to read
                        await writer.wait_closed()
                writer.transport.abort()

        async def talk(reader, writer):
            while line := await reader.readline():
                message = json.loads(line)
                if "id" not in message:
                    continue
                if "config" in message["params"]:
                    writer.write(result(message, OPENED))
                elif (reply := answer(message)) is not None:
                    writer.write(reply)
                if writer.is_closing():
                    break
                await writer.drain()

        return asyncio.start_unix_server(serve, sock=listener)

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    listener.close()


def result(message, value):
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": value}).encode() + b"\n"


async def ends(box, request):
    """Whether a call returned (as some do for some nonsense), or which error of ours it raised."""
    try:
        await request(box)
    except atoll.AtollError as exc:
        return exc
    return None


@pytest.mark.parametrize("request_it", REQUESTS.values(), ids=REQUESTS)
async def test_nonsense_is_no_answer(play_daemon, request_it):
    said = []
    await play_daemon(lambda message: result(message, said[-1]))
    async with asyncio.timeout(50):
        for nonsense in NONSENSE:
            said.append(nonsense)
            box = await atoll.aio.create_sandbox(backend="daemon")
            await ends(box, request_it)
            await box.destroy()
            assert box._connection is None


BROKEN = {
    "not JSON": lambda _: b"garbage\n",
    "half an answer": lambda message: result(message, OPENED)[:-9],
    "an infinite number": lambda message: result(message, 5).replace(b"5", b"1e999"),
    "no number": lambda message: result(message, 5).replace(b"5", b"NaN"),
    "another's answer": lambda _: result({"id": "0" * 16}, OPENED),
    "an answer to no request": lambda _: result({"id": None}, OPENED),
    "a call of nothing": lambda _: b'{"jsonrpc":"2.0","id":"1","method":"host.call"}\n',
    "output of no shape": lambda _: (
        b'{"jsonrpc":"2.0","method":"output","params":{"session":"1","pieces":[5]}}\n'
    ),
    "lines of no shape": lambda _: (
        b'{"jsonrpc":"2.0","method":"lines","params":{"session":"1","lines":[[]]}}\n'
    ),
    "descriptors that did not come": lambda message: result(message, {**OPENED, "fds": 3}),
    "too deep": lambda _: b"[" * 100_000 + b"\n",
    "not ASCII": lambda _: b"\xff\xfe\n",
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
async def test_a_broken_answer_loses_the_sandbox(play_daemon, answer):
    await play_daemon(answer)
    async with asyncio.timeout(20):
        box = await atoll.aio.create_sandbox(backend="daemon")
        with pytest.raises(atoll.SandboxLostError):
            await box.execute("1", timeout_ms=100)
        await box.destroy()


async def test_a_daemon_that_lives_and_forgot_a_call_is_not_waited_for(play_daemon):
    def forgetful(message):
        return result(message, {"calls": []}) if message["method"] == "ping" else None

    await play_daemon(forgetful)
    async with asyncio.timeout(20):
        box = await atoll.aio.create_sandbox(backend="daemon")
        with pytest.raises(atoll.SandboxLostError, match="does not know this call"):
            await box.execute("1", timeout_ms=100)
        await box.destroy()


async def test_a_daemon_that_works_on_a_call_is_waited_for(play_daemon):
    asked = []

    def slow(message):
        asked.append(message)
        if message["method"] != "ping":
            return None
        waiting = [one["id"] for one in asked if one["method"] == "validate"]
        if len(asked) > 4:
            return result({"id": waiting[0]}, {"valid": True}) + result(message, {"calls": []})
        return result(message, {"calls": waiting})

    await play_daemon(slow)
    async with asyncio.timeout(20):
        box = await atoll.aio.create_sandbox(backend="daemon")
        assert await box.validate_code("1")
        assert [one["method"] for one in asked].count("ping") > 2

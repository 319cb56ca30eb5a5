"""Messages of one turn of the loop are written at once, in their order."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from atoll import log
from atoll.log import SandboxLogger
from atoll.policy import ExecutionPolicy
from atoll.rpc import blobs
from atoll.rpc.connection import Peer
from atoll.rpc.passed_fds import PassedFds, Reply


async def serve(_method: str, params: dict[str, Any], fds: PassedFds) -> Reply:
    return Reply([params["n"], [fds.take_bytes().decode() for _ in range(len(fds))]])


async def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[Peer, Peer, list[int], list[Any]]:
    """Two ends, the sizes of what the first one writes, and the notifications that come."""
    heard: list[Any] = []
    written: list[int] = []
    ours, theirs = socket.socketpair()
    asker = Peer(ours, serve, print, lambda _: None)
    answerer = Peer(theirs, serve, lambda _, params: heard.append(params["n"]), lambda _: None)

    def counted(write: Any) -> Any:
        def send(data: Any, *fds: list[int]) -> int:
            written.append(len(data))
            return write(data, *fds)

        return send

    for name in ("_send", "_send_fds"):
        monkeypatch.setattr(asker._outbox, name, counted(getattr(asker._outbox, name)))
    return asker, answerer, written, heard


async def test_calls_of_one_turn_take_two_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, answerer, written, heard = await pair(monkeypatch)
    calls = [asyncio.ensure_future(asker.call("any", {"n": n})) for n in range(50)]
    assert [(await call).value[0] for call in calls] == list(range(50))
    assert len(written) == 2, "the first at once, the others together"
    for n in range(50):
        asker.notify("any", {"n": n})
    asker.end("over")
    async with asyncio.timeout(20):
        while not answerer.ended:  # noqa: ASYNC110 - it hears nothing else
            await asyncio.sleep(0.01)
    assert heard == list(range(50)), "what was held back is written before the end"


async def test_descriptors_stay_with_their_message(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, answerer, _, _ = await pair(monkeypatch)

    def call(n: int) -> asyncio.Future[Reply]:
        fds = [blobs.write(b"%d" % n)] if n % 3 == 2 else []
        return asyncio.ensure_future(asker.call("any", {"n": n}, fds))

    answers = [(await one).value for one in [call(n) for n in range(20)]]
    assert answers == [[n, [str(n)] if n % 3 == 2 else []] for n in range(20)]
    asker.end("over")
    answerer.end("over")


def test_a_logger_without_a_sink_makes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LogEvent", lambda **_: pytest.fail("an event for nobody"))
    quiet = SandboxLogger(None)
    quiet.log_execution_start("python", ExecutionPolicy(), "1")
    quiet.log_security_event("timeout")

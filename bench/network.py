"""A row about requests through the proxy of a network policy, against the same without it."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING

import atoll
from bench.bridge import SERVER
from bench.rows import Arms, needs, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

CALLS = 50
POSTS = f"""
import time, urllib.request
_started = time.perf_counter()
for _ in range({CALLS}):
    with urllib.request.urlopen({{address!r}}, data=b"hi") as _answer:
        assert _answer.read() == b"hi"
(time.perf_counter() - _started) / {CALLS}
"""


@row(what="a request of a guest through the proxy", against="the same, direct", rounds=20)
def network_request(_scale: Scale) -> Iterator[Arms]:
    needs("h11", "ssrfguard", extra="network")
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        place = f"127.0.0.1:{int(server.stdout.readline())}"
        try:
            with atoll.create_sandbox(
                backend="native", network={"allow": [place], "max_requests": None}
            ) as box:
                code = POSTS.format(address=f"http://{place}/")
                yield Arms(ours=lambda: _in_guest(box, code), theirs=lambda: _direct(place))
        finally:
            server.kill()


def _in_guest(box: atoll.SyncSandbox, code: str) -> float:
    result = box.execute(code)
    assert result.success, result.error
    return float(result.value)


def _direct(place: str) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        with urllib.request.urlopen(f"http://{place}/", data=b"hi") as answer:
            assert answer.read() == b"hi"
    return (time.perf_counter() - started) / CALLS

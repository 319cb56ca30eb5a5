"""Rows about calls from the guest to the host, compared with HTTP."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING

import atoll
from bench.rows import Arms, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.rows import Probe, Scale

CALLS = 50
HTTP = "urllib POST to a loopback http.server"
IN_GUEST = f"""
import time
_started = time.perf_counter()
for _ in range({CALLS}):
    llm_query("hi")
(time.perf_counter() - _started) / {CALLS}
"""
SERVER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Echo(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
print(server.server_port, flush=True)
server.serve_forever()
"""


@row(what="llm_query, a function as handler", against=HTTP, rounds=30)
def bridge_sync(_scale: Scale) -> Iterator[Arms]:
    with _echo_server() as theirs, _sandbox(_answer) as box:
        yield Arms(ours=_in_guest(box), theirs=theirs)


@row(what="llm_query, a coroutine as handler", against=HTTP, rounds=30)
def bridge_async(_scale: Scale) -> Iterator[Arms]:
    with _echo_server() as theirs, _sandbox(_answer_async) as box:
        yield Arms(ours=_in_guest(box), theirs=theirs)


def _answer(prompt: str) -> str:
    return prompt


async def _answer_async(prompt: str) -> str:
    return prompt


def _sandbox(handler: Callable[[str], object]) -> atoll.SyncSandbox:
    return atoll.create_sandbox(backend="native", on_llm_query=handler)


def _in_guest(box: atoll.SyncSandbox) -> Probe:
    """Return the seconds per call, by the guest's own clock."""

    def probe() -> float:
        result = box.execute(IN_GUEST)
        assert result.success, result.error
        return float(result.value)

    return probe


@contextlib.contextmanager
def _echo_server() -> Iterator[Probe]:
    """Yield a probe of the seconds per call to an HTTP server in another process."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{int(server.stdout.readline())}/"
        try:
            yield lambda: _post_many(address)
        finally:
            server.kill()


def _post_many(address: str) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        with urllib.request.urlopen(address, data=b"hi") as answer:
            assert answer.read() == b"hi"
    return (time.perf_counter() - started) / CALLS

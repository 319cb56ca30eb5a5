"""The socket in a guest's network, made by a supervisor that is not root: started, forked, cloned."""

from __future__ import annotations

import os
import site

import pytest
from ordinary_user import SOURCE, python_for_user, run_as_user

PROGRAM = """
import asyncio, http.server, threading
from atoll import aio
from atoll.config import SandboxConfig
from atoll.hosting.pool.pool import Pool

class Ok(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ok)
threading.Thread(target=server.serve_forever, daemon=True).start()
place = f"127.0.0.1:{server.server_port}"
ask = f"import urllib.request as u; u.urlopen('http://{place}/').status"

async def main():
    async with aio.create_sandbox(backend="native", network=[place]) as box:
        print("started", (await box.execute(ask)).value)
    async with Pool() as pool:
        async with await pool.open(SandboxConfig(preload="bare", network=[place])) as box:
            print("forked", (await box.execute(ask)).value)
            async with await box.fork() as clone:
                print("cloned", (await clone.execute(ask)).value)

asyncio.run(main())
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="all tests run as an ordinary user already"
)


def test_guests_of_an_ordinary_user_reach_what_is_allowed():
    packages = os.pathsep.join([str(SOURCE), *site.getsitepackages()])
    done = run_as_user(python_for_user(), "-c", PROGRAM, PYTHONPATH=packages)
    if "needs the extra `network`" in done.stderr:
        pytest.skip("the user's Python cannot read the packages of this one")
    assert done.stdout.split("\n")[:3] == ["started 204", "forked 204", "cloned 204"], done.stderr

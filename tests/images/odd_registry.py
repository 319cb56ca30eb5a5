"""A registry made by hand: it has one image, and does odd or hostile things with it."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any


class OddRegistry:
    """A registry of one image by hand, with a token server, redirects, and broken connections."""

    def __init__(self, layout) -> None:
        self.files = {
            path.name: path.read_bytes() for path in layout.path.rglob("*") if path.is_file()
        }
        index = json.loads(self.files["index.json"])
        self.manifest = index["manifests"][0]["digest"].removeprefix("sha256:")
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.redirect_to = ""
        self.token = "T"
        self.cut = 0
        self.spoil = False
        self.instead: Callable[[Any], bool] = lambda _handler: False
        """Answers a request in another way, and returns whether it did."""


@contextlib.contextmanager
def served(odd: OddRegistry) -> Iterator[str]:  # noqa: C901 - a server in one piece
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_args):
            pass

        def answer(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            odd.asked.append((self.headers["Host"], self.path, dict(self.headers)))
            host = self.headers["Host"]
            if odd.instead(self):
                self.close_connection = True
                return None
            if self.path.startswith("/token"):
                return self.answer(200, json.dumps({"token": odd.token}).encode())
            wanted = self.headers.get("Authorization") == f"Bearer {odd.token}"
            if odd.token and not wanted and not self.path.startswith("/cdn/"):
                challenge = f'Bearer realm="http://{host}/token",service="s",scope="x"'
                return self.answer(401, WWW_Authenticate=challenge)
            name = self.path.rpartition("/")[2].removeprefix("sha256:")
            if "/blobs/" in self.path and odd.redirect_to:
                return self.answer(307, Location=f"{odd.redirect_to}/cdn/{name}")
            body = odd.files.get(odd.manifest if name == "1" else name)
            if body is None:
                return self.answer(404)
            return self.send_blob(body)

        def send_blob(self, body):
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            if odd.spoil and len(body) > 3000:
                body = body[:-1] + b"!"
            if odd.cut and start == 0 and len(body) > 3000:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: odd.cut])
                return self.close_connection
            place = f"bytes {start}-{len(body) - 1}/{len(body)}"
            return self.answer(206 if start else 200, body[start:], Content_Range=place)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

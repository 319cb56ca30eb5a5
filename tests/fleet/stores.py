"""Object stores for the tests of a fleet: a folder, servers of this machine, one that cannot fence."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.local_fleet import free_port

PATIENCE_SECONDS = 60
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any12345678", "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
}  # fmt: skip


@contextlib.contextmanager
def moto() -> Iterator[dict[str, str]]:
    """moto's S3, and the environment that leads obstore to it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _server(command, port) as url:
        _make_bucket(url)
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": url}


@contextlib.contextmanager
def seaweed(folder: Path) -> Iterator[dict[str, str]]:
    """SeaweedFS' S3."""
    port = free_port()
    ports = {name: str(free_port()) for name in ("master", "volume", "filer")}
    program = shutil.which("weed", path=os.path.dirname(sys.executable)) or "weed"
    command = [
        program, "server", "-s3", f"-s3.port={port}", f"-dir={folder}", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", f"-master.port={ports['master']}", f"-volume.port={ports['volume']}",
        f"-filer.port={ports['filer']}", "-volume.max=5", "-master.volumeSizeLimitMB=64",
    ]  # fmt: skip
    with _server(command, port) as url:
        _make_bucket(url)
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": url}


@contextlib.contextmanager
def lax() -> Iterator[dict[str, str]]:
    """An S3 that ignores If-None-Match, as some stand-ins do."""
    objects: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            objects[self.path] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(200, b"")

        def do_GET(self) -> None:
            found = objects.get(self.path)
            self._answer(404 if found is None else 200, found or b"")

        def do_DELETE(self) -> None:
            objects.pop(self.path, None)
            self._answer(204, b"")

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", "Tue, 17 Nov 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _server(command: list[str], port: int) -> Iterator[str]:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process)
        yield url
    finally:
        process.kill()  # its data is of no use to anybody
        process.wait(PATIENCE_SECONDS)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(url, timeout=5).close()
            except urllib.error.HTTPError:
                return  # it answers
            return
        time.sleep(0.05)
    raise AssertionError(f"no server answers at {url}: exit code {process.poll()}")


def _make_bucket(url: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/fleet", method="PUT"), timeout=5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return

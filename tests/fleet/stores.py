"""Object stores for the tests of a fleet: a folder, servers of this machine, one that cannot fence."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
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
    port = _low_port()
    ports = {name: str(_low_port()) for name in ("master", "volume", "filer")}
    program = shutil.which("weed", path=os.path.dirname(sys.executable)) or "weed"
    command = [
        program, "server", "-s3", f"-s3.port={port}", f"-dir={folder}", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", f"-master.port={ports['master']}", f"-volume.port={ports['volume']}",
        f"-filer.port={ports['filer']}", "-volume.max=5", "-master.volumeSizeLimitMB=64",
    ]  # fmt: skip
    with _server(command, port) as url:
        _make_bucket(url)
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": url}


def _low_port() -> int:
    """Return a free port to which 10,000 can be added: SeaweedFS does so for gRPC."""
    while True:
        if (port := free_port()) <= 65535 - 10_000:
            return port


@contextlib.contextmanager
def small_s3(*, fences: bool = True) -> Iterator[dict[str, str]]:
    """As much of S3 as a fleet uses, in memory. Without `fences` it ignores If-None-Match."""
    objects: dict[str, bytes] = {}
    times: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with lock:
                taken = fences and self.headers.get("If-None-Match") and self.path in objects
                if not taken:
                    objects[self.path] = data
                    times[self.path] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            self._answer(412 if taken else 200, b"")

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if query:
                self._answer(200, _listing(path, query, objects, times))
                return
            found = objects.get(path)
            self._answer(404 if found is None else 200, found or b"")

        def do_POST(self) -> None:
            """Delete several objects at once."""
            text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            keys = re.findall(r"<Key>(.*?)</Key>", text)
            for key in keys:
                objects.pop(f"{self.path.partition('?')[0].rstrip('/')}/{key}", None)
            done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())

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

    lock = threading.Lock()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listing(bucket: str, query: str, objects: dict[str, bytes], times: dict[str, str]) -> bytes:
    """Return ListObjectsV2's answer, all on one page."""
    prefix = urllib.parse.parse_qs(query).get("prefix", [""])[0]
    root = bucket.rstrip("/") + "/"
    keys = [path.removeprefix(root) for path in list(objects) if path.startswith(root + prefix)]
    rows = "".join(
        f"<Contents><Key>{key}</Key><LastModified>{times[root + key]}</LastModified>"
        f"<ETag>one</ETag><Size>{len(objects.get(root + key, b''))}</Size></Contents>"
        for key in sorted(keys)
    )
    head = (
        f"<Prefix>{prefix}</Prefix><KeyCount>{len(keys)}</KeyCount><IsTruncated>false</IsTruncated>"
    )
    return f"<ListBucketResult>{head}{rows}</ListBucketResult>".encode()


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

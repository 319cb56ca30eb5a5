"""`python -m bench.soak_http`: the service under hostile clients and killed processes.

Each scenario has a bound; the program prints what it measured, and fails if a bound was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from bench.soak_kills import kills
from bench.soak_server import Server
from bench.soak_sessions import many_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROWTH = 48 << 20
"""Bytes by which the service may grow while a slow client reads its output."""


def idle_sockets(server: Server, count: int) -> list[str]:
    """Check that idle connections do not block other clients."""
    socks, refused = [], 0
    for _ in range(count):
        try:
            socks.append(socket.create_connection(("127.0.0.1", server.port), 10))
        except OSError:
            refused += 1
    begun = time.perf_counter()
    status = 0
    while time.perf_counter() - begun < 30:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, _ = server.ask("POST", "/api/v1/run", {"code": "print(1)", "template": "bare"})
        if status == 200:
            break
        time.sleep(0.2)
    seconds = time.perf_counter() - begun
    for one in socks:
        one.close()
    print(f"  {len(socks)} idle sockets open, {refused} refused: a run after {seconds:.1f} s")
    return [] if status == 200 else ["no request was served beside idle sockets"]


def slow_reader(server: Server, size: int) -> list[str]:
    """Check that a client that reads slowly does not make the service grow."""
    before = peak = server.memory
    text = f"for _ in range({size >> 16}): print('x' * 65535)"
    body = {"code": text, "template": "bare", "timeout_ms": 600_000,
            "policy": {"stdout_max_bytes": 1 << 20}}  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    headers = {"accept": "application/x-ndjson", "authorization": f"Bearer {server.key}"}
    connection.request("POST", "/api/v1/run", json.dumps(body), headers)
    with connection.getresponse() as answer:
        for _ in range(100):
            answer.read1(1000)
            peak = max(peak, server.memory)
            time.sleep(0.02)
        while answer.read1(1 << 20):
            peak = max(peak, server.memory)
    connection.close()
    grown = peak - before
    print(f"  {size >> 20} MiB printed to a slow reader: the service grew by {grown >> 20} MiB")
    return [f"it grew by {grown >> 20} MiB"] if grown > GROWTH else []


def gone_clients(server: Server, count: int) -> list[str]:
    """Check that clients that disconnect at any moment leave nothing behind."""
    body = json.dumps({"code": "import time\ntime.sleep(30)", "template": "bare"}).encode()
    head = (
        f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    for number in range(count):
        whole = head + body
        cut = len(whole) if number % 2 else random.randrange(len(whole))
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(whole[:cut])
            time.sleep(random.choice((0, 0.005, 0.05)))
    end = time.monotonic() + 30
    while time.monotonic() < end:
        sandbox = json.loads(server.ask("GET", "/health/detailed")[1])["sandbox"]
        if not (sandbox["executing"] or sandbox["queued"]):
            print(f"  {count} clients left in the middle: nothing runs, nothing waits")
            return []
        time.sleep(0.1)
    return [f"left running: {sandbox}"]


def drain(server: Server, count: int) -> list[str]:
    """Check that requests accepted before SIGTERM are answered."""
    ends: Counter[str] = Counter()
    accepted = threading.Semaphore(0)

    def work() -> None:
        body = {"code": "import time\ntime.sleep(1)\nprint(1)", "template": "bare"}
        try:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            headers = {"accept": "application/x-ndjson", "authorization": f"Bearer {server.key}"}
            connection.request("POST", "/api/v1/run", json.dumps(body), headers)
            answer = connection.getresponse()
            first = answer.readline()
            accepted.release()
            last = [first, *answer][-1]
            ends[json.loads(last)["type"]] += 1
        except (OSError, http.client.HTTPException, ValueError) as exc:
            accepted.release()
            ends[type(exc).__name__] += 1

    threads = [threading.Thread(target=work) for _ in range(count)]
    for one in threads:
        one.start()
    for _ in threads:
        accepted.acquire()
    code = server.stop()
    for one in threads:
        one.join()
    print(f"  {count} accepted, then SIGTERM: {dict(ends)}, exit code {code}")
    return [] if ends == {"result": count} and code == 0 else [f"lost: {dict(ends)}, {code}"]


def full_disk(folder: Path) -> list[str]:
    """Check that with a full disk the service runs code, refuses to store, and recovers."""
    place = folder / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", place], check=False,
                      capture_output=True).returncode:  # fmt: skip
        print("  not tried: no tmpfs can be mounted here")
        return []
    server = None
    try:
        server = Server(place)
        fill = place / "fill"
        with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"0" * 4096)
                file.flush()
        run, _ = server.ask("POST", "/api/v1/run", {"code": "print(1)", "template": "bare"})
        keyed, _ = server.ask("POST", "/api/v1/run", {"code": "1", "template": "bare"},
                              **{"idempotency-key": "a"})  # fmt: skip
        fill.unlink()
        after, _ = server.ask("POST", "/api/v1/run", {"code": "1", "template": "bare"},
                              **{"idempotency-key": "b"})  # fmt: skip
        code = server.stop()
        print(f"  disk full: run {run}, under a key {keyed}; with room again {after}; end {code}")
        good = run == 200 and keyed in (200, 507) and after == 200 and code == 0
        return [] if good else ["the service did not get over a full disk"]
    finally:
        if server is not None and server.process.poll() is None:
            server.process.kill()
        subprocess.run(["umount", "-l", place], check=False)


SCENARIOS: dict[str, tuple[Callable[[Server, int], list[str]], int]] = {
    "idle-sockets": (idle_sockets, 10_000),
    "gone-clients": (gone_clients, 1_000),
    "slow-reader": (slow_reader, 1 << 30),
    "sessions": (many_sessions, 1_000),
    "kills": (kills, 10_000),
    "drain": (drain, 64),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the scenarios; return 1 if a bound was exceeded."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak_http", description=__doc__)
    parser.add_argument("--only", choices=[*SCENARIOS, "full-disk"], action="append")
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the whole figures")
    options = parser.parse_args(arguments)
    chosen = options.only or [*SCENARIOS, "full-disk"]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        if wanted := [one for one in SCENARIOS if one in chosen]:
            with _serving(Path(folder)) as server:
                for name in wanted:
                    scenario, count = SCENARIOS[name]
                    print(name, flush=True)
                    found = scenario(server, max(4, int(count * options.scale)))
                    broken += [f"{name}: {one}" for one in found]
        if "full-disk" in chosen:
            print("full-disk", flush=True)
            broken += [f"full-disk: {one}" for one in full_disk(Path(folder))]
    print("\n".join(f"BROKEN: {one}" for one in broken) or "every bound was kept")
    return int(bool(broken))


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[Server]:
    place = folder / "service"
    place.mkdir()
    server = Server(
        place, max_connections=20_000, max_sessions=1_200, max_live=1_100, max_queue=1_000
    )
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


if __name__ == "__main__":
    sys.exit(main())

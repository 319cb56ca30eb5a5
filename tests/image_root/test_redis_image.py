"""A database of Debian's packages in an image: it runs beside the cells, and is reached by its port."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import rootfs
import usable

import atoll


def ask(box: atoll.SyncSandbox, *lines: str) -> str:
    """Send commands on one connection, and return all answers."""
    with box.connect(6379) as connection:
        connection.settimeout(60)
        connection.sendall("".join(f"{line}\r\n" for line in (*lines, "QUIT")).encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@pytest.mark.parametrize("backend", ["native", "gvisor"])
def test_redis_runs_in_an_image_and_keeps_what_it_is_given(
    backend: str, make_image: Callable[[Callable[[Path], None]], str]
) -> None:
    if not (server := shutil.which("redis-server")):
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    usable.skip_if_missing(backend)

    def fill(top: Path) -> None:
        (top / "usr/bin").mkdir(parents=True)
        shutil.copy(server, top / "usr/bin/redis-server")
        rootfs.copy_libraries(top, [Path(server)])

    command = ["redis-server", "--port", "6379", "--bind", "127.0.0.1", "--dir", "/tmp"]
    with atoll.create_sandbox(backend=backend, image=make_image(fill)) as box:
        redis, shown = box.start(command, stdin=False), b""
        while b"Ready to accept connections" not in shown:
            data = redis.read(timeout_ms=60_000)
            assert data, shown
            shown += data
        assert ask(box, "SET colour teal", "INCR visits", "SAVE") == "+OK\r\n:1\r\n+OK\r\n+OK\r\n"
        assert ask(box, "GET colour") == "$4\r\nteal\r\n+OK\r\n"
        redis.signal("SIGTERM")
        assert redis.wait(timeout_ms=60_000).exit_code == 0
        assert box.execute("open('/tmp/dump.rdb', 'rb').read(5)").value == b"REDIS"

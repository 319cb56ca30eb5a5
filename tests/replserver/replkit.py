"""The REPL server as a program over pipes, and who is left running."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

from atoll.replserver.framing import READY, Frame, FrameParser, encode

PATIENCE_SECONDS = 100


class Program:
    """`atoll repl-server` and its client's end of the pipes, with nothing of our client in it."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "atoll.cli.main", "repl-server", "--python", plain(), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.raw = b""

    def read_until(self, end: bytes) -> bytes:
        """All output so far, once it ends with `end`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.raw.endswith(end):
            left = deadline - time.monotonic()
            assert select.select([self.process.stdout], [], [], max(0, left))[0], self.raw
            data = self.process.stdout.read(1 << 16)
            assert data, (self.raw, self.process.stderr.read())
            self.raw += data
        return self.raw

    def wait_ready(self) -> None:
        assert self.read_until(b"\n") == READY + b"\n"

    def send(self, message: dict) -> None:
        self.process.stdin.write(encode("REQUEST", message))

    def ask(self, code: str, **fields) -> dict:
        """One request, and its response: exactly one frame and not a byte beside it."""
        self.raw = b""
        self.send({"code": code, **fields})
        raw = self.read_until(b"\n>>> RESPONSE_END <<<\n")
        [event] = FrameParser("RESPONSE").feed(raw)
        assert isinstance(event, Frame)
        assert raw == b">>> RESPONSE_START <<<\n" + event.text + b"\n>>> RESPONSE_END <<<\n"
        return json.loads(event.text)

    def end(self) -> int:
        """Close its stdin; its exit code."""
        self.process.stdin.close()
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


@functools.cache
def plain() -> str:
    """An interpreter without libraries: a server that has none to import is ready at once."""
    folder = Path(tempfile.mkdtemp(prefix="plain-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    venv.create(folder / "venv", symlinks=True)
    folder.chmod(0o755)  # a guest's user reads it
    return str(folder / "venv" / "bin" / "python")


def running(token: str) -> list[str]:
    """The processes of this host that have the token on their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True

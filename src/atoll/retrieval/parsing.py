"""Parses files in another process; a file that makes it crash or hang is split into lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

from atoll.config import cache_folder
from atoll.retrieval.chunks import chunk_plainly
from atoll.retrieval.languages import needs_parser
from atoll.retrieval.opening import private_folder
from atoll.retrieval.worker import read_units

if TYPE_CHECKING:
    from atoll.retrieval.types import Bounds, Unit

_START_SECONDS = 30
"""Extra seconds for a process that was just started on a busy machine."""
_PIECE = 1 << 16
_ROOM = 1 << 20


class Parser:
    """The process that parses, started when the first file needs it; a context manager."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._process: subprocess.Popen[bytes] | None = None
        self.failures = 0
        """Files that crashed the process or took too long."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def units(self, path: str, text: str) -> list[Unit]:
        """Return the units of a file; windows of lines for a file that breaks the parser."""
        most = self._bounds.units_per_file
        if not needs_parser(path):
            return chunk_plainly(path, text, most)
        try:
            line = self._ask(json.dumps([path, text, most]).encode() + b"\n")
            return read_units(line, path, most)
        except (OSError, ValueError, RecursionError):
            self.failures += 1
            self.close()
            return chunk_plainly(path, text, most)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError):
                process.communicate()

    def _ask(self, request: bytes) -> bytes:
        grace = 0.0
        if self._process is None:
            self._process, grace = _start(), _START_SECONDS
        deadline = time.monotonic() + self._bounds.parse_seconds + grace
        return _exchange(self._process, request, deadline)


def _start() -> subprocess.Popen[bytes]:
    grammars = private_folder(cache_folder() / "grammars")
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {_BEGIN}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"SEMBLE_GRAMMARS_CACHE_DIR": str(grammars), "PYTHONUTF8": "1"},
        cwd="/",
    )
    assert process.stdin
    assert process.stdout
    for pipe in (process.stdin, process.stdout):
        os.set_blocking(pipe.fileno(), False)
    return process


_BEGIN = "from atoll.retrieval.worker import main; main()"


def _exchange(process: subprocess.Popen[bytes], request: bytes, deadline: float) -> bytes:
    """Send a line and receive one before the deadline; TimeoutError or BrokenPipeError if not."""
    assert process.stdin
    assert process.stdout
    to, back = process.stdin.fileno(), process.stdout.fileno()
    poll, unsent, answer = select.poll(), memoryview(request), bytearray()
    poll.register(back, select.POLLIN)
    poll.register(to, select.POLLOUT)
    most = 64 * len(request) + _ROOM
    while not answer.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or len(answer) > most:
            raise TimeoutError("the parser took too long, or said too much")
        ready = dict(poll.poll(left * 1000))
        if unsent and to in ready:
            unsent = unsent[os.write(to, unsent[:_PIECE]) :]
            if not unsent:
                poll.unregister(to)
        if back in ready:
            answer += _read(back)
    return bytes(answer)


def _read(fd: int) -> bytes:
    data = os.read(fd, _PIECE)
    if not data:
        raise BrokenPipeError("the parser has ended")
    return data

"""The host side of a process for hostile input: starts it with limits, and kills it if it is late.

SECURITY: the host treats its answers as data of a limited length, and nothing else.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from atoll import forks
from atoll.archive.confined import FRAME
from atoll.errors import ArchiveError, ArchiveLimitError, ConfigError
from atoll.policy import MIB

_BOOT = (
    "import sys; from importlib import import_module; sys.path[:] = sys.argv[4:]; "
    "import_module(sys.argv[1]).main()"
)
_KEPT = ("LD_LIBRARY_PATH",)
_MOST_HEADER = 64 * MIB
_MOST_REQUEST = 60_000
"""Bytes of a request without its payload."""
_START_SECONDS = 30.0
"""Least seconds for a process to start on a busy machine; it has not read the input yet."""
_GRACE_SECONDS = 2.0
"""Seconds after the timeout until the process is killed; it should report the timeout itself."""


class Process:
    """A child process that runs a module; one request at a time, from any thread."""

    def __init__(self, module: str, *, memory: int, seconds: float, most: int) -> None:
        """`most` is the number of bytes that an answer may have."""
        self._module, self._memory, self._seconds, self._most = module, memory, seconds, most
        self._lock = forks.new_lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        self.confined = False
        """Whether the process is confined: see `start`."""

    @property
    def running(self) -> bool:
        """Whether there is a process, which keeps the state of earlier requests."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """The process id, while there is one."""
        child = self._child
        return child.pid if child else None

    def start(self, fds: tuple[int, ...] = (), **facts: object) -> None:
        """Start a process; it imports what it needs for these `facts`, and is then confined.

        It inherits the descriptors, with the same numbers. ArchiveError if a library is missing.
        """
        if self._closed.is_set():
            raise ArchiveError("the archive is closed")
        arguments = [self._module, str(self._memory), str(self._seconds), *_search_path()]
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _BOOT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            cwd="/",
            start_new_session=True,
            pass_fds=fds,
        )
        assert self._child.stdin is not None
        os.set_blocking(self._child.stdin.fileno(), False)
        if self._closed.is_set():  # closed by another thread, which may not have seen the child yet
            self._end()
            raise ArchiveError("the archive is closed")
        try:
            # the process has not read the input yet, so this error is not the input's
            self.confined = self.ask("prepare", **facts)[0]["confined"] is True
        except BaseException:
            with self._lock:
                self._end()
            raise

    def ask(
        self, operation: str, payload: bytes = b"", /, **request: object
    ) -> tuple[dict[str, Any], bytes]:
        """Return the answer; ArchiveError if the input is damaged, or crashed the process."""
        seconds = max(self._seconds, _START_SECONDS) if operation == "prepare" else self._seconds
        until = time.monotonic() + seconds + _GRACE_SECONDS
        with self._lock:
            if self._child is None:
                raise ArchiveError("the archive is closed")
            child = self._child
            try:
                self._send(child, {"operation": operation, **request}, payload, until)
                header, rest = self._receive(child, until)
            except BaseException:
                self._end()
                raise
        _raise(header, self._memory)
        return header, rest

    def close(self) -> None:
        """Kill the process, also during a request of another thread."""
        self._closed.set()
        child = self._child
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
        with self._lock:
            self._end()

    def _send(
        self, child: subprocess.Popen[bytes], request: dict[str, Any], payload: bytes, until: float
    ) -> None:
        text = json.dumps(request).encode()
        if len(text) > _MOST_REQUEST:
            most = f"{len(text)} of {_MOST_REQUEST} bytes"
            raise ConfigError(f"the name or query is too long: {most}")
        assert child.stdin is not None
        unsent = memoryview(FRAME.pack(len(text), len(payload)) + text + payload)
        poll = select.poll()
        poll.register(child.stdin, select.POLLOUT)
        with suppress(BrokenPipeError):  # reading the answer reports how it ended
            while unsent:
                left = until - time.monotonic()
                if left <= 0 or not poll.poll(left * 1000):
                    raise self._late()
                unsent = unsent[os.write(child.stdin.fileno(), unsent) :]

    def _receive(
        self, child: subprocess.Popen[bytes], until: float
    ) -> tuple[dict[str, Any], bytes]:
        size, rest = FRAME.unpack(self._exactly(child, FRAME.size, until))
        if size > _MOST_HEADER or rest > self._most:
            raise ArchiveError(f"an answer of {size + rest} bytes is over the limit")
        header = _parsed(self._exactly(child, size, until))
        return header, self._exactly(child, rest, until)

    def _exactly(self, child: subprocess.Popen[bytes], size: int, until: float) -> bytes:
        assert child.stdout is not None
        data = bytearray()
        poll = select.poll()
        poll.register(child.stdout, select.POLLIN)
        while len(data) < size:
            left = until - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise self._late()
            piece = os.read(child.stdout.fileno(), min(size - len(data), MIB))
            if not piece:
                raise self._ended(child)
            data += piece
        return bytes(data)

    def _ended(self, child: subprocess.Popen[bytes]) -> ArchiveError:
        if self._closed.is_set():
            return ArchiveError("the archive was closed meanwhile")
        code = child.wait(_GRACE_SECONDS)
        if code == -signal.SIGXCPU:
            return self._late()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        text = f"it crashed its reader ({how}): it is damaged, or needs more than"
        return ArchiveError(f"{text} max_memory_bytes={self._memory}")

    def _late(self) -> ArchiveError:
        return ArchiveLimitError("max_seconds", most=self._seconds, what="the time in seconds")

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _search_path() -> list[str]:
    return [os.path.abspath(place) for place in sys.path if place]


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ArchiveError("the archive reader sent a malformed answer")
    return header


def _raise(header: dict[str, Any], memory: int) -> None:
    fault = header.get("fault")
    if fault == "limit":
        facts = {name: header.get(name) for name in ("value", "most", "what")}
        raise ArchiveLimitError(str(header.get("limit")), **facts)  # type: ignore[arg-type]
    if fault == "memory":
        raise ArchiveLimitError("max_memory_bytes", most=memory, what="what it needs")
    if fault == "config":
        raise ConfigError(str(header.get("text")))
    if fault:
        raise ArchiveError(str(header.get("text")))

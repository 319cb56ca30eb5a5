"""The host's end of a process for hostile input: started in limits, given a time, killed after it.

SECURITY: what comes back is believed to be data, of a length that may be, and nothing else.
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
"""Bytes of a request: it must fit into a pipe."""
_GRACE_SECONDS = 2.0
"""After its time the process says so itself; so much later it is killed."""


class Process:
    """A program on its own, by its module; one request at a time, from any thread."""

    def __init__(self, module: str, *, memory: int, seconds: float, most: int) -> None:
        """`most`: bytes that an answer may carry."""
        self._module, self._memory, self._seconds, self._most = module, memory, seconds, most
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        self.confined = False
        """Whether the process has walls around it: see `start`."""

    @property
    def running(self) -> bool:
        """Whether there is a process, which remembers what it was asked before."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        child = self._child
        return child.pid if child else None

    def start(self, fds: tuple[int, ...] = (), **facts: object) -> None:
        """Have a process, with what it imports for such `facts` and then walls around it.

        These descriptors are open in it, under their numbers. ArchiveError if a library is missing.
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
        if (
            self._closed.is_set()
        ):  # by another thread, which may have come too early to see the child
            self._end()
            raise ArchiveError("the archive is closed")
        try:
            # said before it has seen the input, so nothing that is hostile has a part in it
            self.confined = self.ask("prepare", **facts)[0]["confined"] is True
        except BaseException:
            with self._lock:
                self._end()
            raise

    def ask(self, operation: str, **request: object) -> tuple[dict[str, Any], bytes]:
        """Its answer. ArchiveError tells what is wrong with the input, or that it took all down."""
        with self._lock:
            if self._child is None:
                raise ArchiveError("the archive is closed")
            child = self._child
            try:
                _send(child, {"operation": operation, **request})
                header, payload = self._receive(child)
            except BaseException:
                self._end()
                raise
        _raise(header, self._memory)
        return header, payload

    def close(self) -> None:
        """End it, also in the midst of a request of another thread."""
        self._closed.set()
        child = self._child
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
        with self._lock:
            self._end()

    def _receive(self, child: subprocess.Popen[bytes]) -> tuple[dict[str, Any], bytes]:
        until = time.monotonic() + self._seconds + _GRACE_SECONDS
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
        text = f"it took its reader down ({how}): it is damaged, or needs more than"
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


def _send(child: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    text = json.dumps(request).encode()
    if len(text) > _MOST_REQUEST:
        raise ConfigError(f"the name or query is too long: {len(text)} of {_MOST_REQUEST} bytes")
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # how it ended is seen where its answer is read
        child.stdin.write(FRAME.pack(len(text), 0) + text)


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

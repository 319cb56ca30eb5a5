"""The guest inside another program: a WebAssembly module whose host calls it, and is called back.

The host brings a port. Text crosses it; bytes cross as text too, a character each, because that is
what crosses cheaply.
"""

from __future__ import annotations

import io
import sys
import time

from ..core import context, failures
from ..core.hidden import HiddenPackage
from ..shared import rpc
from .server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ..core.ports import Gate

    class Port(Protocol):
        """What the host offers to the guest's runtime."""

        def call(self, line: str) -> str:
            """Return the host's answer to a request of the guest; empty if it was interrupted."""
            ...

        def emit(self, stream: int, data: str) -> None:
            """Print: 1 is stdout, 2 is stderr."""
            ...

        def take(self, size: int) -> str:
            """Return up to `size` bytes from the host; empty at the end."""
            ...

        def text(self, width: int, length: int, ascii_only: bool) -> str | None:
            """Return a large text that the host writes into memory itself; None if it cannot."""
            ...

        def put(self, data: str) -> None:
            """Send bytes to the host."""
            ...

        def sleep(self, seconds: float) -> bool:
            """Sleep; return whether an interrupt ended it."""
            ...


PIECE = 1 << 20
LATIN = "latin-1"


class EmbeddedGuest:
    """A guest that its host calls with one request after the other."""

    def __init__(self, port: Port, gate: Gate, folder: str) -> None:
        runtime = HiddenPackage((__package__ or "guest").partition(".")[0])
        streams, passed = PortStreams(port), PortPassedData(port)
        self._server = Server(PortCalls(port), gate, streams, passed, folder, runtime=runtime)
        time.sleep = _sleeper(port)
        sys.path.append(folder)
        runtime.hide()

    def rehearse(self) -> str:
        """Run an empty cell to warm up; return nothing."""
        self._server.rehearse()
        return ""

    def handle(self, line: str) -> str:
        """Return the answer to a request, both as lines of JSON."""
        self._server.prepare()
        answer = self._server.answer(rpc.decode(line.encode("ascii")))
        return answer[:-1].decode("ascii")


class PortCalls:
    """Calls to the host, one at a time."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._count = 0

    def call(self, method: str, params: rpc.Message) -> Any:
        """Ask the host and wait for its answer."""
        self._count += 1
        line = rpc.request("g{}".format(self._count), method, params)
        reply = self._port.call(line[:-1].decode("ascii"))
        if not reply:
            raise KeyboardInterrupt
        answer = rpc.decode(reply.encode("ascii"))
        if "error" in answer:
            raise failures.from_error(answer["error"])
        return answer["result"]


class PortStreams:
    """Standard streams that print through the port."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def renew(self) -> None:
        """Replace the streams, which guest code may have closed or replaced."""
        sys.stdin = io.TextIOWrapper(io.BytesIO(b""), encoding="utf-8")
        sys.stdout = sys.__stdout__ = self._writer(1)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self._writer(2)  # type: ignore[misc]

    def flush(self) -> None:
        """Flush the stream objects that guest code uses now."""
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except Exception:
                pass

    def _writer(self, number: int) -> io.TextIOWrapper:
        raw = io.BufferedWriter(PortFile(self._port, number))
        return io.TextIOWrapper(
            raw, encoding="utf-8", errors="backslashreplace", line_buffering=True
        )


class PortFile(io.RawIOBase):
    """One of the two streams, as a file."""

    def __init__(self, port: Port, number: int) -> None:
        self._port, self._number = port, number

    def writable(self) -> bool:
        """Return True: it can only be written to."""
        return True

    def fileno(self) -> int:
        """Return its number: 1 or 2."""
        return self._number

    def write(self, data: Any) -> int:
        """Print bytes."""
        piece = bytes(data[:PIECE])  # the worker has little memory beside ours
        self._port.emit(self._number, piece.decode(LATIN))
        return len(piece)


class PortPassedData:
    """Context and state, as text through the port."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def text(self, width: int, length: int, ascii_only: bool) -> tuple[str, bool]:
        """Return the text of the context, copied."""
        whole = self._port.text(width, length, ascii_only) if length > PIECE else None
        if whole is not None:
            return whole, False
        data = self._bytes(width * length)
        if width > 1:
            data = data.encode(LATIN).decode(context.CODECS[width], "surrogatepass")
        return data, False

    def _bytes(self, size: int) -> str:
        parts = []
        while size:
            parts.append(self._port.take(min(size, PIECE)))
            size -= len(parts[-1])
            if not parts[-1]:
                raise ValueError("the context is shorter than announced")
        return "".join(parts)

    def stream(self) -> PortStream:
        """Return the stream that a state is saved to or restored from."""
        return PortStream(self._port)


class PortStream:
    """A saved state, as text through the port."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def write(self, data: memoryview) -> int:
        """Send all of it to the host."""
        self._port.put(bytes(data).decode(LATIN))
        return len(data)

    def readinto(self, room: memoryview) -> int:
        """Fill part of the buffer; return how many bytes, 0 at the end."""
        data = self._port.take(len(room)).encode(LATIN)
        room[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Do nothing: the port stays open."""


def _sleeper(port: Port) -> Any:
    def sleep(seconds: float) -> None:
        """Delay execution for a given number of seconds."""
        if not seconds >= 0:  # which NaN is not either
            raise ValueError("sleep length must be non-negative")
        if port.sleep(float(seconds)):
            raise KeyboardInterrupt

    return sleep

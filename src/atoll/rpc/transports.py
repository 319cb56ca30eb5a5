"""What carries a connection: a Unix socket that passes descriptors, or TCP, with or without TLS.

Messages are lines (`guest.shared.rpc`). A message says how many items come beside it: `fds` in its
params or result. On a Unix socket they are descriptors, sent with the line. On a stream they are
bytes, sent before the line; a line of JSON has no NUL in it, so that is where they begin:

    NUL, size in 8 bytes, bytes, {"jsonrpc":"2.0","id":"..","method":"open","params":{"fds":1}} LF
"""

from __future__ import annotations

import array
import fcntl
import socket
import ssl
import struct
import termios
from typing import TYPE_CHECKING, Protocol

from atoll.errors import SandboxError
from atoll.guest.shared.rpc import ProtocolError
from atoll.rpc import blobs
from atoll.rpc.blobs import MAX_BLOB_BYTES
from atoll.rpc.passed_fds import PassedFds, close_all
from atoll.rpc.peer import CHUNK, NotYetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.rpc.blobs import Buffer

    Part = tuple[Buffer, list[int]]

MAX_FDS = 4
"""Beside one message."""
FD_ROOM = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
BULK = 1 << 18
"""Bytes to read at once while those beside a message arrive."""
TLS_RECORD = 1 << 14
_CLOSE_ON_EXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
_HEAD = struct.Struct(">BQ")


class LostDescriptorsError(Exception):
    """No descriptor was free for those of a message."""


class Transport(Protocol):
    """What a `Peer` needs of its socket."""

    def receive(self) -> bytes:
        """Read bytes of lines: none at the end; BlockingIOError if none have come yet."""

    def take(self, count: int) -> PassedFds:
        """Return what came beside a message that announces `count` items."""

    def end_packet(self, *, complete: bool) -> None:
        """Check what no message has announced; `complete`: the bytes received end a message."""

    def pack(self, line: bytes, items: Sequence[int | Buffer]) -> list[Part]:
        """Return what to write for a message, each with its descriptors; `items` are used up."""

    def send(self, data: Buffer, /) -> int:
        """Send as much as fits; return the number of bytes."""

    def close(self) -> None:
        """Close descriptors that were received and not taken."""


class DescriptorSocket:
    """A Unix socket: descriptors arrive with the packet that has their message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self.send = sock, sock.send
        self._fds = list[int]()
        self._fds_lost = False
        """Whether descriptors of the message that is arriving found no room here."""

    def receive(self) -> bytes:
        """Read a packet, and keep its descriptors."""
        data, ancillary, flags, _ = self._socket.recvmsg(CHUNK, FD_ROOM, _CLOSE_ON_EXEC)
        for level, kind, received in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(received[: len(received) - len(received) % fds.itemsize])
                self._fds += fds
        if flags & _CUT:
            if len(self._fds) >= MAX_FDS:
                raise OSError("more descriptors than a message may have")
            self._fds_lost = True  # none was free here; the message itself is whole
        return data

    def take(self, count: int) -> PassedFds:
        """Return the first descriptors that came."""
        if self._fds_lost:
            raise LostDescriptorsError
        if count > len(self._fds):
            raise ProtocolError("descriptors that did not come")
        taken, self._fds[:count] = self._fds[:count], []
        return PassedFds(taken)

    def end_packet(self, *, complete: bool) -> None:
        """Close descriptors that no message of the same packet has announced."""
        if complete:
            self._fds_lost = False
            if self._fds:
                self.close()
        elif len(self._fds) > MAX_FDS:
            raise ProtocolError("too many descriptors")

    def pack(self, line: bytes, items: Sequence[int | Buffer]) -> list[Part]:
        """Return the line with its descriptors; bytes are put into memory files."""
        fds = [item if isinstance(item, int) else blobs.write(item) for item in items]
        return [(line, fds)]

    def send_fds(self, data: Buffer, fds: list[int]) -> int:
        """Send as much as fits. Descriptors wait until everything before them was read.

        Otherwise any number of memory files could be in the socket's buffer, uncounted.
        """
        if fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)) != bytes(4):
            raise NotYetError
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        return self._socket.sendmsg([data], rights)

    def close(self) -> None:
        """Close the descriptors that no message has taken."""
        close_all(self._fds)
        self._fds.clear()


class ByteStream:
    """A TCP socket, or one with TLS on it: bytes arrive before their message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._has_tls = isinstance(sock, ssl.SSLSocket)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = b""
        """The part of a head that has come."""
        self._blob, self._missing = bytearray(), 0
        """The bytes that are arriving, and how many of them have not come yet."""
        self._blobs, self._size = list[bytearray](), 0
        """Bytes that no message has taken yet, and how many those are."""
        self._within_line = False

    def receive(self) -> bytes:
        """Read what there is; keep the bytes that are beside messages, return those of lines."""
        data = self._read(BULK if self._missing else CHUNK)
        if not data:
            return b""
        lines = self._split(data)
        if not lines:
            raise BlockingIOError
        return lines

    def take(self, count: int) -> PassedFds:
        """Return the first blobs that came."""
        if count > len(self._blobs):
            raise ProtocolError("bytes that did not come")
        taken, self._blobs[:count] = self._blobs[:count], []
        self._size -= sum(map(len, taken))
        return PassedFds(taken)

    def end_packet(self, *, complete: bool) -> None:  # noqa: ARG002 - their message comes later
        """Refuse more blobs than one message may have."""
        if len(self._blobs) > MAX_FDS:
            raise ProtocolError("bytes that no message announced")

    def pack(self, line: bytes, items: Sequence[int | Buffer]) -> list[Part]:
        """Return the bytes of all items, and the line: in one piece unless they are large."""
        left, parts, size = list(items), list["Buffer"](), 0
        try:
            while left:
                item = left.pop(0)
                data = blobs.read(item) if isinstance(item, int) else item
                size += len(data)
                parts += (_HEAD.pack(0, len(data)), data)
        finally:
            close_all(left)
        if size > MAX_BLOB_BYTES:
            raise SandboxError(
                f"{size:,} bytes beside a message; at most {MAX_BLOB_BYTES:,} may be"
            )
        parts.append(line)
        if size + len(line) <= CHUNK:
            parts = [b"".join(parts)]
        return [(part, []) for part in parts if part]

    def send(self, data: Buffer) -> int:
        """Send as much as fits; with TLS at most one record, repeated if it did not fit."""
        try:
            return self._socket.send(data[:TLS_RECORD] if self._has_tls else data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def close(self) -> None:
        """Forget what came."""
        self._blobs.clear()
        self._blob = bytearray()

    def _read(self, size: int) -> bytes:
        """Read once; with TLS also decrypted bytes, which the loop cannot see."""
        try:
            data = self._socket.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        if isinstance(self._socket, ssl.SSLSocket):
            while data and (pending := self._socket.pending()):
                data += self._socket.recv(pending)
        return data

    def _split(self, data: bytes) -> bytes:
        """Take the blobs out of `data`; return the lines around them."""
        lines, at, end = list[bytes](), 0, len(data)
        while at < end:
            if self._missing:
                used = min(self._missing, end - at)
                start = len(self._blob) - self._missing
                self._blob[start : start + used] = data[at : at + used]
                self._missing -= used
                if not self._missing:
                    self._blobs.append(self._blob)
            elif self._head or data[at] == 0:
                used = min(_HEAD.size - len(self._head), end - at)
                self._head += data[at : at + used]
                if len(self._head) == _HEAD.size:
                    self._begin_blob()
            else:
                nul = data.find(0, at)
                used = (end if nul < 0 else nul) - at
                lines.append(data[at : at + used])
                self._within_line = data[at + used - 1] != ord("\n")
            at += used
        return b"".join(lines)

    def _begin_blob(self) -> None:
        """Make room for the bytes that a head announces. SECURITY: they are counted before."""
        size = _HEAD.unpack(self._head)[1]
        self._head, self._size = b"", self._size + size
        if self._within_line:
            raise ProtocolError("bytes within a line")
        if self._size > MAX_BLOB_BYTES:
            raise ProtocolError(f"more than {MAX_BLOB_BYTES:,} bytes beside a message")
        self._blob, self._missing = bytearray(size), size
        if not size:
            self._blobs.append(self._blob)


def transport_of(sock: socket.socket) -> Transport:
    """Return what carries messages on this socket."""
    return DescriptorSocket(sock) if sock.family == socket.AF_UNIX else ByteStream(sock)

"""A saved state as a stream of blocks: each has a tag, a name, and bytes that may be compressed.

Compression is lz4 where the guest's Python has it, else zlib, and only where it pays: a block
whose beginning does not shrink is kept as it is.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from ..core.ports import Stream

    Buffer = bytes | bytearray | memoryview

RAW, ZLIB, LZ4 = 0, 1, 2
END = b"E"
HEADER_BYTES = 22
SMALL = 1 << 9
SAMPLE = 1 << 17
WORTH_IT = 0.9
PIECE = 1 << 20


class Budget:
    """Bytes spent of a state's limit. It goes on counting beyond the limit."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.used = 0

    def spend(self, size: int) -> bool:
        """Count `size` bytes; whether they still fit."""
        self.used += size
        return self.used <= self.cap


class Writer:
    """Writes blocks to a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._codec, self._compress = _compressor()
        self.codec_name = {ZLIB: "zlib", LZ4: "lz4"}[self._codec]
        self.stored = 0

    def write(self, tag: bytes, name: bytes = b"", data: Buffer = b"") -> None:
        """Write one block."""
        view = memoryview(data)
        codec, packed = self._pack(view)
        sizes = len(name).to_bytes(4, "little") + view.nbytes.to_bytes(8, "little")
        self._send(tag + bytes([codec]) + sizes + len(packed).to_bytes(8, "little") + name)
        self._send(packed)

    def _pack(self, view: memoryview) -> tuple[int, memoryview]:
        if view.nbytes < SMALL:
            return RAW, view
        sample = view[:SAMPLE]
        shrunk = self._compress(sample)
        if len(shrunk) > WORTH_IT * len(sample):
            return RAW, view
        return self._codec, memoryview(shrunk if len(sample) == len(view) else self._compress(view))

    def _send(self, data: Buffer) -> None:
        view = memoryview(data)
        self.stored += len(view)
        while view:
            view = view[self._stream.write(view[:PIECE]) :]


def read(stream: Stream, cap: int) -> Iterator[tuple[bytes, bytes, bytearray]]:
    """Yield the blocks that a Writer wrote; ValueError if they exceed `cap` bytes."""
    budget = Budget(cap)
    while True:
        head = _exactly(stream, HEADER_BYTES)
        tag, codec = bytes(head[:1]), head[1]
        name_size, size, stored = _number(head[2:6]), _number(head[6:14]), _number(head[14:])
        if tag == END:
            return
        if not budget.spend(HEADER_BYTES + name_size + size) or stored > size:
            raise ValueError("the state has more than {:,} bytes".format(cap))
        name = bytes(_exactly(stream, name_size))
        yield tag, name, _unpack(codec, _exactly(stream, stored), size)


def _number(data: Buffer) -> int:
    return int.from_bytes(data, "little")


def _exactly(stream: Stream, size: int) -> bytearray:
    data, at = bytearray(size), 0
    view = memoryview(data)
    while at < size:
        got = stream.readinto(view[at : at + PIECE])
        if not got:
            raise ValueError("the state ends too early")
        at += got
    return data


def _compressor() -> tuple[int, Any]:
    try:
        import lz4.frame  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        import zlib

        return ZLIB, lambda data: zlib.compress(data, 1)
    return LZ4, lz4.frame.compress


def _unpack(codec: int, data: bytearray, size: int) -> bytearray:
    """Return at most `size` bytes, writable, since arrays are made of them."""
    if codec == RAW:
        return data
    if codec == ZLIB:
        import zlib

        plain = zlib.decompressobj().decompress(data, size)
    else:
        plain = _lz4_decompress(data, size)
    if len(plain) != size:
        raise ValueError("a block of the state is damaged")
    return bytearray(plain)


def _lz4_decompress(data: bytearray, size: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise ValueError("it was saved with lz4, which this Python does not have") from None
    plain: bytes = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size)
    return plain

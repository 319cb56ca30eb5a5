"""Messages between a driver and a node as bytes: a header, sizes of the blobs, JSON, the blobs."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Message = dict[str, Any]
MOST_BYTES = 1 << 30
"""In one frame: a state, a file, a result."""
_HEAD = struct.Struct(">II")
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_from_json = json.JSONDecoder().raw_decode  # json.loads looks for other encodings and for spaces


def encode(message: Message, blobs: Sequence[bytes] = ()) -> list[bytes]:
    """Return a message as a frame, in parts; ValueError if it is too large."""
    body = _to_json(message).encode()
    if len(body) + sum(map(len, blobs)) > MOST_BYTES:
        raise ValueError(f"a message may have {MOST_BYTES:,} bytes")
    sizes = struct.pack(f">{len(blobs)}Q", *map(len, blobs))
    return [_HEAD.pack(len(body), len(blobs)) + sizes + body, *blobs]


def decode(data: bytearray) -> tuple[Message, int] | None:
    """Return the first message and the length of its frame; None if it is not whole.

    The bytes beside a message are its "blobs".
    """
    if len(data) < _HEAD.size:
        return None
    length, count = _HEAD.unpack_from(data)
    begin = _HEAD.size + 8 * count
    if length > MOST_BYTES or begin > MOST_BYTES:
        raise ValueError("the frame is too large")
    if len(data) < begin:
        return None
    sizes = struct.unpack_from(f">{count}Q", data, _HEAD.size)
    end = begin + length
    if end + sum(sizes) > 2 * MOST_BYTES:
        raise ValueError("the frame is too large")
    if len(data) < end + sum(sizes):
        return None
    message, _ = _from_json(data[begin:end].decode())
    message["blobs"] = blobs = list[bytes]()
    for size in sizes:
        blobs.append(bytes(memoryview(data)[end : end + size]))
        end += size
    return message, end

"""Messages between a driver and a node as bytes: a header, sizes of the blobs, JSON, the blobs."""

from __future__ import annotations

import json
import struct
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Message = dict[str, Any]
Buffer = bytes | memoryview
LARGE = 1 << 16
"""Bytes beside a message that are not worth a copy."""
MOST_BYTES = 1 << 30
"""In one frame: a state, a file, a result."""
MOST_BLOBS = 1024
_HEAD = struct.Struct(">II")
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_from_json = json.JSONDecoder().raw_decode  # json.loads looks for other encodings and for spaces


def encode(message: Message, blobs: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return a message as a frame, in parts; ValueError if it is too large."""
    body = _to_json(message).encode()
    if len(body) + sum(map(len, blobs)) > MOST_BYTES or len(blobs) > MOST_BLOBS:
        raise ValueError(f"a message may have {MOST_BYTES:,} bytes, and {MOST_BLOBS:,} blobs")
    sizes = struct.pack(f">{len(blobs)}Q", *map(len, blobs))
    return [_HEAD.pack(len(body), len(blobs)) + sizes + body, *blobs]


def take(data: bytearray) -> tuple[Message, bytearray] | None:
    """Return the first message, and the bytes after it; None if it is not whole.

    The bytes beside a message are its "blobs": copies, so that small messages share one buffer.
    Large ones are views of `data`, which is then theirs; what follows is copied instead.
    """
    ends = _whole(data)
    if ends is None:
        return None
    begin, *cuts = ends
    message, _ = _from_json(data[begin : cuts[0]].decode())
    view, end = memoryview(data), cuts[-1]
    found = [view[start:stop] for start, stop in pairwise(cuts)]
    if end - cuts[0] >= LARGE:
        message["blobs"] = found
        return message, data[end:]
    message["blobs"] = [bytes(one) for one in found]
    del found, view  # a bytearray that is viewed cannot shrink
    del data[:end]
    return message, data


def size(data: bytearray) -> int:
    """Return how many bytes the first message has; 0 if that is not known yet."""
    return (_ends(data) or [0])[-1]


def _whole(data: bytearray) -> list[int] | None:
    """Return where the first message's JSON begins and ends, and each blob; None if not whole."""
    ends = _ends(data)
    return ends if ends is not None and len(data) >= ends[-1] else None


def _ends(data: bytearray) -> list[int] | None:
    """Return where JSON and blobs will begin and end; None if the sizes have not come."""
    if len(data) < _HEAD.size:
        return None
    length, count = _HEAD.unpack_from(data)
    begin = _HEAD.size + 8 * count
    if length > MOST_BYTES or count > MOST_BLOBS:
        raise ValueError("the frame is too large")
    if len(data) < begin:
        return None
    sizes = struct.unpack_from(f">{count}Q", data, _HEAD.size)
    ends = [begin, *accumulate(sizes, initial=begin + length)]
    if ends[-1] - begin > MOST_BYTES:
        raise ValueError("the frame is too large")
    return ends

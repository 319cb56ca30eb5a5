"""Messages of Jupyter's kernel protocol on a websocket: JSON as text, and two binary forms.

SECURITY: a client's frame is data. Counts and offsets are checked before anything is cut out by
them; what cannot be read is a ValueError, and the socket is closed.
"""

from __future__ import annotations

import json
import struct
import uuid
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from atoll.guest.shared import rpc
from atoll.service.clock import now
from atoll.service.http.problems import encode
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from atoll.service.access.admission import Holding

Fields = dict[str, Any]
"""A header, the metadata or the content of a message."""
V1 = "v1.kernel.websocket.jupyter.org"
"""The sub-protocol whose frames are binary; without one, a frame is JSON."""
VERSION = "5.4"
MAX_PARTS = 1_000
LONGEST_NAME = 1_000
_HEADER = ("msg_id", "msg_type", "session", "username", "date", "version", "subshell_id")
_FIELDS = ("header", "parent_header", "metadata", "content")


@dataclass(slots=True)
class KernelMessage:
    """One message; buffers are not kept, as nothing that is served has any."""

    channel: str
    header: Fields
    content: Fields
    parent_header: Fields = field(default_factory=dict)
    metadata: Fields = field(default_factory=dict)
    held: Holding | None = None
    """What the service holds of it until it is answered."""

    @property
    def kind(self) -> str:
        """The type of the message."""
        return str(self.header.get("msg_type"))

    def trim(self) -> None:
        """Keep of a client's message only what it asks, and what answers have to name."""
        self.parent_header, self.metadata = {}, {}
        self.header = {
            name: value
            for name, value in self.header.items()
            if name in _HEADER and isinstance(value, str) and len(value) <= LONGEST_NAME
        }

    def answer(self, channel: str, kind: str, content: Fields, session: str) -> KernelMessage:
        """Return a message whose parent is this one."""
        return KernelMessage(channel, header(kind, session), content, self.header)


def header(kind: str, session: str) -> Fields:
    """Return the header of a new message."""
    return {
        "msg_id": uuid.uuid4().hex,
        "msg_type": kind,
        "session": session,
        "username": "atoll",
        "date": iso_time(now()),
        "version": VERSION,
    }


def write(message: KernelMessage, protocol: str | None) -> str | bytes:
    """Return the frame of a message."""
    parts = {name: getattr(message, name) for name in _FIELDS}
    if protocol == V1:
        return _write_v1([message.channel.encode(), *map(encode, parts.values())])
    names = {name: message.header[name] for name in ("msg_id", "msg_type")}
    return encode({**parts, **names, "channel": message.channel, "buffers": []}).decode()


def read(frame: str | bytes, protocol: str | None) -> KernelMessage:
    """Return the message of a frame; ValueError if it is not one."""
    if protocol == V1 and isinstance(frame, bytes):
        parts = _parts_v1(frame)
        channel: Any = parts[0].decode()
        fields: Fields = {name: _load(part) for name, part in zip(_FIELDS, parts[1:5], strict=True)}
    else:
        fields = _load(frame if isinstance(frame, str) else _first_part(frame))
        channel = fields.get("channel") or "shell"
    given = {name: fields.get(name) or {} for name in _FIELDS}
    if not isinstance(channel, str) or not all(isinstance(part, dict) for part in given.values()):
        raise ValueError("the message has a part of a wrong type")
    if not isinstance(given["header"].get("msg_type"), str):
        raise ValueError("the message has no msg_type")  # noqa: TRY004 - as above
    return KernelMessage(
        channel, given["header"], given["content"], given["parent_header"], given["metadata"]
    )


def _load(text: str | bytes) -> Fields:
    try:
        rpc.check_structure(text.encode("utf-8", "replace") if isinstance(text, str) else text)
        result = json.loads(text)
    except (RecursionError, rpc.ProtocolError) as exc:
        raise ValueError(f"the message cannot be read: {exc}"[:200]) from None
    if not isinstance(result, dict):
        raise ValueError("a part of the message is not a JSON object")  # noqa: TRY004 - a frame's fault
    return result


def _write_v1(parts: list[bytes]) -> bytes:
    at = 8 * (len(parts) + 2)
    offsets = [at]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts)


def _parts_v1(frame: bytes) -> list[bytes]:
    """Return channel, header, parent, metadata, content, and buffers."""
    parts = _cut(frame, "<Q")
    if len(parts) < 1 + len(_FIELDS):
        raise ValueError("the frame has too few parts")
    return parts


def _first_part(frame: bytes) -> bytes:
    """Return the JSON of a frame with buffers: its offsets do not tell the end of the last."""
    return _cut(frame, ">I", ends=False)[0]


def _cut(frame: bytes, form: str, *, ends: bool = True) -> list[bytes]:
    size = struct.calcsize(form)
    (count,) = struct.unpack_from(form, frame) if len(frame) >= size else (0,)
    if not 1 <= count <= MAX_PARTS or len(frame) < size * (1 + count):
        raise ValueError("the frame does not hold the parts that it names")
    offsets = list(struct.unpack_from(f"{form[0]}{count}{form[1]}", frame, size))
    offsets += [] if ends else [len(frame)]
    if offsets != sorted(offsets) or offsets[0] < size * (1 + count) or offsets[-1] > len(frame):
        raise ValueError("the frame does not hold the parts that it names")
    return [frame[first:last] for first, last in pairwise(offsets)]

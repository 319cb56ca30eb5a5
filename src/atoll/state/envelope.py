"""Saved states as the host keeps them: opaque bytes in a signed envelope.

    ATOLL-STATE ⏎  {header as JSON} ⏎  payload  HMAC-SHA256 of all before it

SECURITY: the signature is verified before any byte goes to a guest. The host never parses the
payload: a guest wrote it, and only a guest loads it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from atoll.errors import StateError, StateTooLargeError
from atoll.state.key import state_key

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = b"ATOLL-STATE\n"
VERSION = 1
MAX_HEADER = 8 << 20
MAC_BYTES = 32
MAX_LEFT_OUT = 1_001
"""A guest names a thousand at most, and last how many more there are."""
MAX_TEXT = 200
CODECS = ("lz4", "zlib")
_SHAPE_ERRORS = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInfo:
    """The header of a saved state whose signature was verified."""

    python: str
    """The version of Python that saved it and can load it, such as 3.11."""
    created: float
    """Seconds since 1970."""
    size: int
    """Bytes of variables and files before compression, as the guest reports."""
    left_out: Mapping[str, str]
    """Variables, files and environment that were not saved, each with the reason."""
    tier: str | None = None
    """The tier of libraries that its session had preloaded; None if it had none."""


def seal(
    payload: bytes, facts: Mapping[str, Any], python: tuple[int, ...], tier: str | None = None
) -> bytes:
    """Return a guest's state and its description as one signed blob."""
    key = state_key()
    header = {
        "version": VERSION,
        "python": _short_version(python),
        "codec": _known_codec(facts),
        "created": time.time(),
        "payload": len(payload),
        "size": _size(facts),
        "left_out": _left_out(facts),
        "key": _key_id(key),
        "tier": tier,
    }
    body = MAGIC + json.dumps(header).encode() + b"\n" + payload
    return body + hmac.digest(key, body, "sha256")


def unseal(blob: bytes) -> tuple[StateInfo, memoryview]:
    """Return a blob's header and payload; StateError if anything in it is invalid."""
    header, start = _header(blob)
    end = start + header["payload"]
    if len(blob) == end:
        raise StateError("the state has no signature: pass the bytes that save() returned")
    if len(blob) != end + MAC_BYTES:
        raise StateError(
            f"the state is cut or padded: {len(blob):,} bytes, not {end + MAC_BYTES:,}"
        )
    key = state_key()
    if header["key"] != _key_id(key):
        raise StateError("the state was signed with another key: set ATOLL_STATE_KEY to that one")
    view = memoryview(blob)
    if not hmac.compare_digest(hmac.digest(key, view[:end], "sha256"), view[end:]):
        raise StateError("the state has been changed since it was saved: its signature is wrong")
    info = StateInfo(
        python=header["python"],
        created=header["created"],
        size=header["size"],
        left_out=MappingProxyType(header["left_out"]),
        tier=header.get("tier"),
    )
    return info, view[start:end]


def describe_state(blob: bytes) -> StateInfo:
    """Return the header of a saved state; StateError if its signature is wrong."""
    return unseal(blob)[0]


def tier_of(blob: bytes) -> str | None:
    """Return the tier that a state names; its signature is checked when it is restored."""
    tier = _header(blob)[0].get("tier")
    return tier if isinstance(tier, str) else None


def open_for(blob: bytes, python: tuple[int, ...], max_bytes: int) -> memoryview:
    """Return the payload for a guest of this version; StateError if it is for another."""
    info, payload = unseal(blob)
    if info.python != _short_version(python):
        version, needed = _short_version(python), info.python
        raise StateError(
            f"the state is of Python {needed}, and the guest's is {version}: use python="
        )
    if info.size > max_bytes:
        text = f"the state has {info.size:,} bytes: max_state_bytes is {max_bytes:,}"
        raise StateTooLargeError(text, limit=max_bytes, size=info.size)
    return payload


def _header(blob: bytes) -> tuple[dict[str, Any], int]:
    """Return the validated header, and the offset of the payload."""
    if not isinstance(blob, bytes):
        raise StateError(f"a state is bytes, not {type(blob).__name__}")
    if not blob.startswith(MAGIC):
        raise StateError("these bytes are not a saved state: pass what save() returned")
    end = blob.find(b"\n", len(MAGIC), len(MAGIC) + MAX_HEADER)
    if end < 0:
        raise StateError("the state is cut within its header")
    try:
        header = json.loads(blob[len(MAGIC) : end])
        version = int(header["version"])
    except _SHAPE_ERRORS:
        raise StateError("the state's header is damaged") from None
    if version > VERSION:
        raise StateError(f"the state is of format {version}, newer than this Atoll: upgrade it")
    if not _has_shape(header):
        raise StateError("the state's header is damaged")
    return header, end + 1


def _has_shape(header: dict[str, Any]) -> bool:
    kinds = {
        "python": str,
        "created": float,
        "payload": int,
        "size": int,
        "left_out": dict,
        "key": str,
    }
    return all(type(header.get(name)) is kind for name, kind in kinds.items())


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"atoll-state-key-id" + key).hexdigest()[:16]


def _short_version(python: tuple[int, ...]) -> str:
    return f"{python[0]}.{python[1]}"


def _known_codec(facts: Mapping[str, Any]) -> str:
    codec = facts.get("codec")
    if codec not in CODECS:
        raise StateError("the guest's state is compressed in no known way")
    return str(codec)


def _size(facts: Mapping[str, Any]) -> int:
    size = facts.get("size")
    if type(size) is not int or not 0 <= size < 1 << 62:
        raise StateError("the guest's state has no size")
    return size


def _left_out(facts: Mapping[str, Any]) -> dict[str, str]:
    names = facts.get("left_out")
    if not isinstance(names, dict):
        raise StateError("the guest does not say what it left out of its state")
    pairs = list(names.items())[:MAX_LEFT_OUT]
    return {str(name)[:MAX_TEXT]: str(reason)[:MAX_TEXT] for name, reason in pairs}

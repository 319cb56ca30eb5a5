"""A saved environment: the sandbox's state and the research beside it, in one signed blob.

    ATOLL-ENVIRONMENT ⏎  {research, ranges seen, turns, size} as JSON ⏎  sandbox state  HMAC-SHA256

SECURITY: the signature is checked before the JSON is parsed. The sandbox's state has a signature of
its own and is never parsed on the host.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any

from atoll.errors import StateError
from atoll.state.key import state_key

if TYPE_CHECKING:
    from atoll.agent.environment.research.tree_state import ResearchContext
    from atoll.search.coverage import Ledger
    from atoll.search.index import ContextIndex

MAGIC = b"ATOLL-ENVIRONMENT\n"
MAC_BYTES = 32
MAX_HEADER = 16 << 20
MOST_RANGES = 20_000
WHOLE, SAMPLES = 1 << 24, 256
"""Characters up to which all of a context is compared; of a longer one, evenly spread samples."""
INTO_CONTEXT = ("peek", "grep", "doc_search")


def seal(
    state: bytes, research: ResearchContext, ledger: Ledger, index: ContextIndex | None, turns: int
) -> bytes:
    """Return everything as one blob."""
    header = {
        "research": research.to_dict(),
        "scanned": ledger.ranges("scanned")[:MOST_RANGES],
        "shown": ledger.ranges("shown")[:MOST_RANGES],
        "context": fingerprint(index),
        "turns": turns,
    }
    body = MAGIC + json.dumps(header).encode() + b"\n" + state
    return body + hmac.digest(state_key(), body, "sha256")


def split_state(blob: bytes | None) -> tuple[bytes | None, dict[str, Any] | None]:
    """Return the sandbox's state, and what was saved beside it; a sandbox's own blob has none."""
    if not isinstance(blob, bytes) or not blob.startswith(MAGIC):
        return blob, None
    body, signature = blob[:-MAC_BYTES], blob[-MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(state_key(), body, "sha256"), signature):
        raise StateError("the saved environment was cut, changed, or signed with another key")
    end = body.find(b"\n", len(MAGIC), len(MAGIC) + MAX_HEADER)
    try:
        header = json.loads(body[len(MAGIC) : end])
    except ValueError:
        raise StateError("the header of the saved environment is damaged") from None
    return body[end + 1 :], header


def load(
    header: dict[str, Any], research: ResearchContext, ledger: Ledger, index: ContextIndex | None
) -> int:
    """Restore research and ranges, and return the number of turns.

    Over another context, the ranges are left out, and what was found in the old one is stale.
    """
    research.load(header["research"])
    if header["context"] != fingerprint(index):
        research.outdate(INTO_CONTEXT)
        return int(header["turns"])
    for start, end in header["scanned"]:
        ledger.scan(start, end)
    for start, end in header["shown"]:
        ledger.show(start, end)
    return int(header["turns"])


def fingerprint(index: ContextIndex | None) -> str:
    """Return what differs between contexts; of a very long one, by samples."""
    if index is None:
        return ""
    digest = hashlib.blake2b(str(index.length).encode(), digest_size=16)
    size = WHOLE // SAMPLES
    step = max(size, index.length // SAMPLES)
    for start in range(0, index.length, step):
        text = index.text(start, min(index.length, start + size))
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()

"""What every part of one fleet has to agree on. The head writes it; nodes and drivers read it."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import platform
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.errors import ConfigError, FleetError
from atoll.fleet.store import MARK
from atoll.policy import check_positive
from atoll.state.key import state_key

if TYPE_CHECKING:
    from atoll.fleet.store import Store

SAVE_SECONDS = 10.0
KEEP_SECONDS, LEAST_KEEP_SECONDS = 7 * 86400.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The settings of one fleet."""

    store: str
    """The address of the object store: a folder that all nodes see, or `s3://bucket/prefix`."""
    ident: str = field(default_factory=lambda: secrets.token_hex(8))
    key_check: str = ""
    """What the key for signing states makes of `ident`: nodes with another key are refused."""
    version: str = __version__
    capacity: int = 256
    """Sessions on one node."""
    tier: str | None = None
    """The libraries that sessions have imported; unset: the largest tier."""
    save_seconds: float = SAVE_SECONDS
    """How often sessions with durability `periodic` are saved."""
    keep_seconds: float = KEEP_SECONDS
    """For how long the store keeps a session that no node has; then its end is kept as long."""
    keep_log: bool = False
    """Whether entries and states that newer ones replace are kept, to look at them."""

    def __post_init__(self) -> None:
        check_positive("capacity", self.capacity)
        check_positive("save_seconds", self.save_seconds)
        if self.keep_seconds < LEAST_KEEP_SECONDS:
            raise ConfigError(
                f"keep_seconds must be at least {LEAST_KEEP_SECONDS:g}, not {self.keep_seconds!r}: "
                "a node that is busy for a part of this time would lose its sessions"
            )
        if not self.key_check:
            object.__setattr__(self, "key_check", key_check(self.ident))

    def to_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> FleetSettings:
        """Return the settings; FleetError if they are of a version with other ones."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as exc:
            raise FleetError(f"the fleet's settings cannot be read: {exc}") from None

    def check_here(self) -> None:
        """Raise FleetError if this process has another key, or another version of Atoll."""
        if not hmac.compare_digest(self.key_check, key_check(self.ident)):
            raise FleetError(
                "this machine signs states with another key than the fleet: "
                "set ATOLL_STATE_KEY to the same one on every machine"
            )
        if self.version != __version__:
            raise FleetError(
                f"the fleet runs Atoll {self.version} and this is {__version__}: "
                "install the same version on every machine"
            )


def key_check(ident: str) -> str:
    """Return what two processes compare to know that they have the same key."""
    return hmac.new(state_key(), f"atoll fleet {ident}".encode(), hashlib.sha256).hexdigest()[:32]


async def mark_prefix(store: Store, settings: FleetSettings, *, adopt: bool = False) -> None:
    """Write that the store's prefix is this fleet's; FleetError if another fleet has it."""
    facts = {"ident": settings.ident, "host": platform.node(), "started": time.time()}
    if await store.create(MARK, json.dumps(facts).encode()):
        return
    owner_mark = await _mark(store)
    if owner_mark.get("ident") == settings.ident:
        return
    if not adopt:
        owner = (
            f"the fleet {owner_mark['ident']} of {owner_mark.get('host')}"
            if "ident" in owner_mark
            else "a fleet"
        )
        raise FleetError(
            f"{store.url} belongs to {owner}: two fleets cannot share one prefix. "
            "Use another, or --adopt if that fleet has gone"
        )
    await store.delete(MARK)
    await mark_prefix(store, settings)


async def unmark_prefix(store: Store, settings: FleetSettings) -> None:
    """Let another fleet have the prefix."""
    if (await _mark(store)).get("ident") == settings.ident:
        await store.delete(MARK)


async def _mark(store: Store) -> dict[str, Any]:
    """Return the mark of the prefix; empty if it is damaged."""
    try:
        result = json.loads(await store.get(MARK) or b"{}")
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}

"""API keys: made, checked, revoked. A key belongs to a tenant, and has scopes and quotas.

SECURITY: only the SHA-256 of a key is stored; a key has 256 random bits, so no slow hash is
needed. Everything that is not a known, valid key is refused.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import hmac
import json
import re
import secrets
import sqlite3
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from atoll.errors import ConfigError
from atoll.policy import check_keys, check_positive
from atoll.service import clock
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from atoll.service.storage.database import Database

SCOPES = ("execute", "sessions", "files", "runs", "metrics", "admin")
USUAL_SCOPES = ("execute", "sessions", "files")
_KEY = re.compile(r"atl_([0-9a-f]{8})_([A-Za-z0-9_-]{43})\Z")
_TENANT = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,64}\Z")
_BY_ID = "SELECT * FROM keys WHERE id = ?"
BURST_SECONDS = 2.0
USED_SECONDS = 60
"""How exact the time of a key's last use is."""
_WRONG = "the key is not known, expired or revoked: ask the operator for another (atoll keys add)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one key may use; None means no limit."""

    requests_per_second: float = 100
    burst: int | None = None
    """Requests that may come at once after a pause; unset: those of two seconds."""
    connections: int = 256
    """Requests at one time, with streams of events and websockets."""
    executions: int = 32
    """At one time, those that wait for their turn included."""
    sessions: int = 64
    stored_bytes: int = 4 << 30
    cpu_seconds_per_day: float | None = None
    memory_bytes: int | None = 2 << 30
    """Of one sandbox."""
    disk_bytes: int | None = None
    """Of one sandbox; unset: as much as memory, as its folders are in memory."""
    timeout_ms: float = 600_000
    preview_requests_per_second: float = 200
    """Of visitors, to previews of the key's sessions."""
    preview_connections: int = 512
    """Requests of visitors at one time, with websockets."""
    preview_bytes_per_day: int | None = 64 << 30
    """Bytes between visitors and the key's sessions, both ways."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_positive(name, value)

    @property
    def room(self) -> float:
        """How many requests may come at once."""
        return float(self.burst or max(1.0, BURST_SECONDS * self.requests_per_second))

    @property
    def most_disk_bytes(self) -> int | None:
        """What the folders of one sandbox may hold."""
        return self.memory_bytes if self.disk_bytes is None else self.disk_bytes

    @classmethod
    def of(cls, given: dict[str, Any]) -> Quota:
        """Return the quota of some fields; ConfigError for an unknown one."""
        check_keys("quota", given, cls.__dataclass_fields__)
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who makes a request."""

    key: str
    tenant: str
    scopes: frozenset[str] = frozenset()
    quota: Quota = field(default_factory=Quota)
    user: str = ""
    """Who it is within the tenant, for an API that knows users."""

    def require(self, scope: str) -> None:
        """Refuse a request that the key has no scope for."""
        if scope not in self.scopes:
            has = ", ".join(sorted(self.scopes)) or "none"
            raise Problem(403, "scope", f"this needs a key with the scope {scope!r}; it has: {has}")


class KeyInfo(Struct, kw_only=True):
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    created: float
    expires: float | None
    revoked: float | None
    used: float | None
    scopes: list[str]
    quota: dict[str, float | None]

    @classmethod
    def of(cls, row: sqlite3.Row) -> KeyInfo:
        """Return what a row of the database says."""
        known = {name: row[name] for name in cls.__struct_fields__}
        scopes, quota = row["scopes"].split(), json.loads(row["quota"])
        return cls(**{**known, "scopes": scopes, "quota": quota})


class Keys:
    """The keys in the database. A key that is revoked is refused from the next request on."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        name: str = "",
        *,
        tenant: str = "default",
        scopes: tuple[str, ...] = USUAL_SCOPES,
        seconds: float | None = None,
        quota: Quota | None = None,
    ) -> str:
        """Make a key and return it; it cannot be shown again."""
        if not _TENANT.match(tenant):
            raise ConfigError(f"a tenant has 1 to 64 of A-Z a-z 0-9 . _ -, not {tenant!r}")
        for scope in scopes:
            if scope not in SCOPES:
                raise ConfigError(f"no scope {scope!r}: there are {', '.join(SCOPES)}")
        check_positive("expiry", seconds)
        ident, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        key, now = f"atl_{ident}_{secret}", clock.now()
        expires = None if seconds is None else now + seconds
        limits = json.dumps(asdict(quota or Quota()))
        row = (ident, tenant, name[:200], _digest(key), " ".join(scopes), limits, now, expires)
        self._database.write("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)", *row)
        return key

    def revoke(self, ident: str) -> bool:
        """Refuse a key from now on; return whether there was such a key."""
        query = "UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL"
        return self._database.write(query, clock.now(), ident) > 0

    def change(self, ident: str, name: str | None, quota: dict[str, Any]) -> KeyInfo | None:
        """Change the name and some limits of a key; None if there is no such key."""
        row = self._database.one(_BY_ID, ident)
        if row is None:
            return None
        limits = json.dumps(asdict(Quota.of({**json.loads(row["quota"]), **quota})))
        query = "UPDATE keys SET name = coalesce(?, name), quota = ? WHERE id = ? RETURNING *"
        row = self._database.one(query, None if name is None else name[:200], limits, ident)
        return None if row is None else KeyInfo.of(row)

    def list(self) -> list[KeyInfo]:
        """Describe each key, without its secret."""
        rows = self._database.all("SELECT * FROM keys ORDER BY created")
        return [KeyInfo.of(row) for row in rows]

    def check(self, headers: Headers, *, basic: bool = False) -> Principal:
        """Return whose key a request has; 401 if it has none that is valid, 400 if it has two.

        With `basic` the key may be a Basic credential, which clients make of http://KEY:@host.
        """
        given = headers.getlist("authorization")
        if len(given) + len(headers.getlist("x-api-key")) > 1:
            raise Problem(400, "ambiguous", "the request has several credentials: send one")
        scheme, _, key = (given[0] if given else "").partition(" ")
        if basic and scheme.lower() == "basic":
            return self.of_key(key_of_header(given[0]))
        if scheme.lower() != "bearer" or not key.strip():
            detail = "send the header `Authorization: Bearer KEY`; `atoll keys add` makes a key"
            raise Problem(401, "unauthorized", detail, reason="missing")
        return self.of_key(key.strip())

    def of_key(self, key: str) -> Principal:
        """Return whose key this is; 401 if it is not valid."""
        match = _KEY.match(key)
        row = self._database.one(_BY_ID, match[1]) if match else None
        known = row["digest"] if row is not None else b"\0" * 32
        if not hmac.compare_digest(known, _digest(key)):
            row = None
        return self._of_row(row)

    def of_id(self, ident: str) -> Principal:
        """Return who acts by a key that is known by its id alone; 401 if it is not valid now."""
        return self._of_row(self._database.one(_BY_ID, ident))

    def _of_row(self, row: sqlite3.Row | None) -> Principal:
        now = clock.now()
        if row is None or row["revoked"] is not None:
            reason = "unknown" if row is None else "revoked"
            raise Problem(401, "unauthorized", _WRONG, reason=reason)
        if row["expires"] is not None and row["expires"] <= now:
            raise Problem(401, "unauthorized", _WRONG, reason="expired")
        if row["used"] is None or now - row["used"] > USED_SECONDS:
            with contextlib.suppress(sqlite3.Error):  # a full disk does not make a key invalid
                self._database.write("UPDATE keys SET used = ? WHERE id = ?", now, row["id"])
        return _principal(row["id"], row["tenant"], row["scopes"], row["quota"])


def key_of_header(text: str) -> str:
    """Return the key or token of an Authorization header, Bearer or Basic; 401 for another."""
    scheme, _, rest = text.strip().partition(" ")
    if scheme.lower() == "bearer" and rest.strip():
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
        except ValueError:
            raise Problem(401, "unauthorized", "the Basic credential cannot be read") from None
        if user or password:
            return password if _KEY.match(password) else user or password
    raise Problem(401, "unauthorized", "the Authorization header is neither Bearer nor Basic")


@functools.lru_cache(1024)
def _principal(key: str, tenant: str, scopes: str, quota: str) -> Principal:
    """Return who a row stands for; checking a quota again for each request takes a while."""
    return Principal(
        key=key, tenant=tenant, scopes=frozenset(scopes.split()), quota=Quota(**json.loads(quota))
    )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

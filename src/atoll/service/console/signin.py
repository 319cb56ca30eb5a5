"""Signing in to the console: a key, or a link that works once, becomes a cookie and a token.

SECURITY: a request of the console needs both. The cookie is HttpOnly and SameSite=Strict: no
script reads it, no other site sends it. Browsers send it to every port of a host, though, so the
token goes along in a header; the page keeps it in its own storage, which is of one origin. Only
hashes of both are stored. The key is looked up again for each request: revoking it works at once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING

from atoll.service import clock
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.service.access.keys import Keys, Principal
    from atoll.service.storage.database import Database

FRAMES = "/console/displays/"
TOKEN_HEADER = "x-atoll-csrf"  # noqa: S105 - a header's name
SIGNED_IN_SECONDS = 8 * 3600
LINK_SECONDS = 600
MAX_FAILURES, FAILURE_SECONDS = 10, 3600
MAX_ADDRESSES = 4096
_TABLE = """CREATE TABLE IF NOT EXISTS logins (
    cookie BLOB PRIMARY KEY, token BLOB NOT NULL, key TEXT NOT NULL, expires REAL NOT NULL)"""


class SignIns:
    """Who is signed in. The rows outlive the process, so a restart ends no sign-in."""

    def __init__(self, keys: Keys, database: Database) -> None:
        self._keys, self._database = keys, database
        self._links: dict[bytes, tuple[str, float]] = {}
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        database.write(_TABLE)

    def secret(self, key: str) -> str:
        """Return a secret that signs in once, within ten minutes, as the key with this id."""
        secret = secrets.token_urlsafe(32)
        self._links[_digest(secret)] = key, clock.now() + LINK_SECONDS
        return secret

    def sign_in(self, request: Request, *, key: str, link: str) -> tuple[str, str, Principal]:
        """Return a Set-Cookie header, a token and whose they are; 401 if it is not valid."""
        address = request.client.host if request.client else ""
        self._check_failures(address)
        try:
            principal = self._linked(link) if link else self._keys.of_key(key.strip())
        except Problem:
            self._failures.setdefault(address, []).append(clock.now())
            raise
        cookie, token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        now = clock.now()
        self._database.write("DELETE FROM logins WHERE expires < ?", now)
        row = (_digest(cookie), _digest(token), principal.key, now + SIGNED_IN_SECONDS)
        self._database.write("INSERT INTO logins VALUES (?, ?, ?, ?)", *row)
        return set_cookie(request, cookie, SIGNED_IN_SECONDS), token, principal

    def sign_out(self, request: Request) -> str:
        """End the sign-in of a request; return a Set-Cookie header that removes the cookie."""
        cookie = request.cookies.get(cookie_name(request), "")
        self._database.write("DELETE FROM logins WHERE cookie = ?", _digest(cookie))
        return set_cookie(request, "", 0)

    def principal(self, request: Request) -> Principal | None:
        """Return who is signed in at the page that a request comes from.

        None means that it comes from no page of ours: another site's, or a program with a key.
        """
        if not same_origin(request):
            return None
        token = request.headers.get(TOKEN_HEADER)
        # A frame or picture is asked for by the browser itself, which adds no header of ours.
        framed = request.method == "GET" and request.scope["path"].startswith(FRAMES)
        if token is None and not framed:
            return None
        if "authorization" in request.headers or "x-api-key" in request.headers:
            raise Problem(400, "ambiguous", "the request has several credentials: send one")
        return self._signed_in(request.cookies.get(cookie_name(request), ""), token)

    def _signed_in(self, cookie: str, token: str | None) -> Principal:
        row = self._database.one("SELECT * FROM logins WHERE cookie = ?", _digest(cookie))
        expired = Problem(401, "signed_out", "you are signed out: sign in again")
        if row is None or row["expires"] <= clock.now():
            raise expired
        if token is not None and not hmac.compare_digest(row["token"], _digest(token)):
            raise expired
        return self._keys.of_id(row["key"])

    def _linked(self, secret: str) -> Principal:
        ident, expires = self._links.pop(_digest(secret), ("", 0.0))
        if expires <= clock.now():
            detail = "the link was used, or is older than ten minutes: sign in with a key"
            raise Problem(401, "unauthorized", detail)
        return self._keys.of_id(ident)

    def _check_failures(self, address: str) -> None:
        since = clock.now() - FAILURE_SECONDS
        recent = [at for at in self._failures.pop(address, []) if at > since]
        if recent:
            self._failures[address] = recent
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        if len(recent) >= MAX_FAILURES:
            wait = recent[0] + FAILURE_SECONDS - clock.now()
            text = f"{MAX_FAILURES} attempts from your address failed within an hour: wait"
            raise Problem(429, "rate_limited", text, retry_after=wait)


def cookie_name(request: Request) -> str:
    """Return the cookie's name. Cookies know no ports, so without TLS the port is part of it."""
    if request.url.scheme == "https":
        return "__Host-atoll"
    return f"atoll_{request.url.port or 80}"


def set_cookie(request: Request, value: str, seconds: int) -> str:
    """Return a Set-Cookie header that only this host gets, and no script reads."""
    secure = "; Secure" if request.url.scheme == "https" else ""
    rules = f"Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
    return f"{cookie_name(request)}={value}; {rules}"


def same_origin(request: Request) -> bool:
    """Return whether the browser says that a page of this very origin asks."""
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if request.headers.get("origin", own) != own:
        return False
    return request.headers.get("sec-fetch-site", "same-origin") == "same-origin"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()

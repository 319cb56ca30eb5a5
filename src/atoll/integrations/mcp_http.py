"""`atoll mcp --http`: the MCP server over streamable HTTP, for clients with a token.

A token is one of the operator's own, or one that an OAuth authorization server signed. The server
is then an OAuth resource: it says at `/.well-known/oauth-protected-resource` who gives tokens.

SECURITY: a request's Host, Origin and token are checked before its body is read. Static tokens are
compared in constant time; signed ones need the issuer, this server as audience, and an expiry.
Without a token it serves only this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from atoll.errors import ConfigError
from atoll.extras import hint
from atoll.integrations.mcp_requests import TOKEN_OWNER

try:
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_http needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from mcp.server import MCPServer

    Scope = MutableMapping[str, Any]

TOKEN_VARIABLE = "ATOLL_MCP_TOKEN"  # noqa: S105 - the name of it
SHORTEST_TOKEN = 16
MAX_BODY_BYTES = 32 << 20
PATH = "/mcp"
METADATA = "/.well-known/oauth-protected-resource"
ALGORITHMS = {"OKP": "EdDSA", "RSA": "RS256", "EC": "ES256"}
"""The algorithm of a signature, by the type of its key: a token does not choose it."""
SKEW_SECONDS = 30
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """The authorization server whose tokens are accepted."""

    issuer: str
    keys: str
    """A JWKS file with its public keys."""


async def serve_http(
    server: MCPServer[Any],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tokens: tuple[str, ...] = (),
    oauth: OAuth | None = None,
    url: str = "",
    names: tuple[str, ...] = (),
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C; `on_ready` is called with the address.

    `names` are the names, besides localhost, that the Host header may have; `url` is the address
    that clients use if a proxy is in front. Without a token, `host` has to be a loopback address.
    """
    check_host(host, guarded=bool(tokens or oauth))
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}{PATH}"
    public = url or address
    known = tuple(name for name in (*_LOOPBACK, host, *names, urlsplit(public).hostname) if name)
    app: Any = server.streamable_http_app(
        transport_security=_security(known),
        max_request_body_size=MAX_BODY_BYTES,
        host=host,
        streamable_http_path=PATH,
    )
    if tokens or oauth:
        app = Bearer(app, tokens, SignedTokens(oauth, public) if oauth else None)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    with listening:
        on_ready(address)
        await uvicorn.Server(config).serve(sockets=[listening])


def check_host(host: str, *, guarded: bool) -> None:
    """Raise ConfigError if other machines could connect without a token."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not guarded and not local:
        raise ConfigError(f"--no-token is for this machine alone, not for {host}: leave one out")


def tokens_from_environment() -> tuple[str, ...]:
    """Return the tokens of ATOLL_MCP_TOKEN, which commas separate, or a new one."""
    given = [
        token.strip() for token in os.environ.get(TOKEN_VARIABLE, "").split(",") if token.strip()
    ]
    if any(len(token) < SHORTEST_TOKEN for token in given):
        raise ConfigError(f"{TOKEN_VARIABLE} must have at least {SHORTEST_TOKEN} characters")
    return tuple(given) or (secrets.token_urlsafe(32),)


class SignedTokens:
    """Verifies tokens of an OAuth authorization server, and describes this resource."""

    def __init__(self, oauth: OAuth, resource: str) -> None:
        try:
            import jwt  # noqa: PLC0415 - an extra of its own
        except ImportError:
            raise ConfigError(f"signed tokens need the extra `jwt`. {hint('jwt')}") from None
        self._jwt: Any = jwt
        self._issuer, self._resource = oauth.issuer, resource
        try:
            with open(oauth.keys, encoding="utf-8") as file:
                listed = json.load(file)["keys"]
            self._keys = {key["kid"]: self._key(key) for key in listed}
        except (OSError, KeyError, TypeError, ValueError, jwt.PyJWTError) as exc:
            why = f"{type(exc).__name__}: {exc}"
            raise ConfigError(f"no public keys can be read from {oauth.keys}: {why}") from None

    def owner(self, token: str) -> str | None:
        """Return whose a token is; None if it is not valid here."""
        try:
            algorithm, key = self._keys[self._jwt.get_unverified_header(token)["kid"]]
            claims = self._jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=self._issuer,
                audience=self._resource,
                leeway=SKEW_SECONDS,
                options={"require": ["iss", "aud", "sub", "exp"]},
            )
        except (self._jwt.PyJWTError, KeyError, TypeError, ValueError):
            return None
        return f"oauth:{claims['sub']}"

    @property
    def metadata_url(self) -> str:
        """Where a client finds the description of this resource."""
        parts = urlsplit(self._resource)
        return f"{parts.scheme}://{parts.netloc}{METADATA}{parts.path.rstrip('/')}"

    def metadata(self) -> bytes:
        """Return the description of this resource (RFC 9728)."""
        known = {
            "resource": self._resource,
            "resource_name": "Atoll",
            "authorization_servers": [self._issuer],
            "bearer_methods_supported": ["header"],
        }
        return json.dumps(known).encode()

    def _key(self, jwk: dict[str, Any]) -> tuple[str, Any]:
        algorithm = ALGORITHMS[jwk["kty"]]
        return algorithm, self._jwt.PyJWK(jwk, algorithm).key


class Bearer:
    """Passes requests with `Authorization: Bearer TOKEN` to an ASGI application."""

    def __init__(
        self, app: Any, tokens: tuple[str, ...], signed: SignedTokens | None = None
    ) -> None:
        self._app, self._signed = app, signed
        self._tokens = [token.encode() for token in tokens]

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer 401, or pass the request on with its owner."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if self._signed is not None and scope["path"] in (METADATA, METADATA + PATH):
            await _answer(
                send, 200, self._signed.metadata(), (b"content-type", b"application/json")
            )
            return
        owner = self._owner(scope)
        if owner is not None:
            await self._app({**scope, TOKEN_OWNER: owner}, receive, send)
            return
        challenge = b"Bearer"
        if self._signed is not None:
            challenge += f' resource_metadata="{self._signed.metadata_url}"'.encode()
        body = b"a token is needed: Authorization: Bearer TOKEN\n"
        headers = ((b"www-authenticate", challenge), (b"content-type", b"text/plain"))
        await _answer(send, 401, body, *headers)

    def _owner(self, scope: Scope) -> str | None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or not given[0].startswith(b"Bearer "):
            return None
        token: bytes = given[0].removeprefix(b"Bearer ")
        matching = [known for known in self._tokens if hmac.compare_digest(token, known)]
        if matching:
            return f"token:{hashlib.sha256(token).hexdigest()}"
        if self._signed is None:
            return None
        return self._signed.owner(token.decode("latin-1"))


async def _answer(send: Any, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def _security(names: tuple[str, ...]) -> TransportSecuritySettings:
    hosts = [host for name in names for host in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def _listen(host: str, port: int) -> socket.socket:
    try:
        [(family, *_), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = socket.create_server((host, port), family=family)
    except OSError as exc:
        raise ConfigError(f"cannot serve at {host}:{port}: {exc.strerror or exc}") from None
    return made

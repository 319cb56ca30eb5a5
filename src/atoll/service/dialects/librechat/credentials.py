"""Who asks, in the ways LibreChat has had: x-api-key, Bearer, Basic, a signed token, or nothing.

SECURITY: everything that is not exactly one valid credential is refused. A request without one is
let in only if the operator named a key for that, and only from the networks that they named. Signed
tokens (JWT) are EdDSA or RS256 with a key of that type; the header's `kid` has to name one of the
operator's keys. Every claim that the service relies on is required and checked.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from typing import TYPE_CHECKING, Any

from atoll.config import expand_home
from atoll.errors import ConfigError
from atoll.extras import hint
from atoll.service.access.keys import USUAL_SCOPES, Principal, key_of_header
from atoll.service.http.problems import Problem
from atoll.service.http.proxies import is_client_known

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from atoll.service.access.keys import Keys
    from atoll.service.settings import ServiceSettings


ALGORITHMS = {"OKP": "EdDSA", "RSA": "RS256"}
LONGEST_LIFE = 300
SKEW = 30
LEAST_RSA_BITS = 2048
_TENANT = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,60}\Z")
_REQUIRED = ("iss", "aud", "sub", "iat", "exp", "jti")
_SOURCES = ("librechat_jwt", "openid_reuse")


class Tokens:
    """Verifies tokens."""

    def __init__(self, settings: ServiceSettings) -> None:
        try:
            import jwt  # noqa: PLC0415 - an extra of its own
        except ImportError:
            raise ConfigError(f"tokens need the extra `jwt`. {hint('jwt')}") from None
        self._jwt: Any = jwt
        self._issuer, self._audience = settings.jwt_issuer, settings.jwt_audience
        self._keys = self._load(expand_home(settings.jwt_keys))

    def verify(self, token: str) -> dict[str, Any]:
        """Return the claims of a valid token; 401 otherwise."""
        try:
            kid = self._jwt.get_unverified_header(token).get("kid")
            algorithm, key = self._keys[kid]
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=SKEW,
                options={"require": list(_REQUIRED)},
            )
        except (self._jwt.PyJWTError, KeyError, TypeError, ValueError):
            raise _invalid() from None
        _check(claims)
        claims.setdefault("tenant_id", "legacy")
        return claims

    def _load(self, path: Path) -> dict[str, tuple[str, Any]]:
        """Return the keys by id: of a JWKS file, or of a folder of PEM files named by id."""
        try:
            if path.is_dir():
                given = {file.stem: file.read_bytes() for file in path.glob("*.pem")}
                result = {kid: self._of_pem(pem) for kid, pem in given.items()}
            else:
                known = json.loads(path.read_bytes())["keys"]
                result = {jwk["kid"]: self._of_jwk(jwk) for jwk in known}
        except (OSError, KeyError, TypeError, ValueError, self._jwt.PyJWTError) as exc:
            why = f"{type(exc).__name__}: {exc}"
            raise ConfigError(f"no public keys can be read from {path}: {why}") from None
        if not result:
            raise ConfigError(f"there is no public key in {path}")
        return result

    def _of_pem(self, pem: bytes) -> tuple[str, Any]:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

        key = load_pem_public_key(pem)
        if isinstance(key, Ed25519PublicKey):
            return "EdDSA", key
        if isinstance(key, RSAPublicKey) and key.key_size >= LEAST_RSA_BITS:
            return "RS256", key
        raise ValueError(f"a key has to be Ed25519, or RSA of {LEAST_RSA_BITS} bits")

    def _of_jwk(self, jwk: dict[str, Any]) -> tuple[str, Any]:
        return ALGORITHMS[jwk["kty"]], self._jwt.PyJWK(jwk, ALGORITHMS[jwk["kty"]]).key


def _check(claims: dict[str, Any]) -> None:
    tenant, source = claims.get("tenant_id", "legacy"), claims.get("principal_source")
    user, ident, life = claims["sub"], claims["jti"], claims["exp"] - claims["iat"]
    if not all(isinstance(text, str) and len(text) <= 256 for text in (tenant, user, ident)):
        raise _invalid()
    known = source in (None, *_SOURCES)
    if not (_TENANT.match(tenant) and user and 0 < life <= LONGEST_LIFE and known):
        raise _invalid()


def _invalid() -> Problem:
    return Problem(401, "unauthorized", "Invalid bearer token", reason="token")


SHARED_USER = "shared"
"""The user of everybody who has the same key: `User-Id` is not believed."""
_TOKEN = re.compile(r"[\w-]+\.[\w-]*\.[\w-]*\Z", re.ASCII)


class Credentials:
    """Finds out who makes a request of LibreChat's dialect."""

    def __init__(self, settings: ServiceSettings, keys: Keys) -> None:
        self._keys, self._open = keys, settings.librechat_key
        self._networks = [ipaddress.ip_network(text) for text in settings.librechat_networks]
        self._tokens: Tokens | None = None
        self.reload(settings)

    def reload(self, settings: ServiceSettings) -> None:
        """Read the keys of tokens again; ConfigError, with the old ones kept, if they are bad."""
        self._tokens = Tokens(settings) if settings.jwt_keys else None

    def check(self, request: Request) -> Principal:
        """Return who asks; 400 for two credentials, 401 for none that is valid."""
        headers = request.headers
        given = [key_of_header(text) for text in headers.getlist("authorization")]
        given += headers.getlist("x-api-key")
        if len(set(given)) > 1:
            raise Problem(400, "ambiguous", "Ambiguous authentication headers")
        if not given:
            return self._without(request)
        if _TOKEN.match(given[0]):
            return self._of_token(given[0])
        return _shared(self._keys.of_key(given[0]))

    def _of_token(self, token: str) -> Principal:
        if self._tokens is None:
            text = "Invalid bearer token: the service has no keys for tokens (--jwt-keys)"
            raise Problem(401, "unauthorized", text, reason="token")
        claims = self._tokens.verify(token)
        tenant = f"jwt.{claims['tenant_id']}"
        key, scopes = f"{tenant}/{claims['sub']}", frozenset(USUAL_SCOPES)
        return Principal(key=key, tenant=tenant, scopes=scopes, user=claims["sub"])

    def _without(self, request: Request) -> Principal:
        if self._open and self._is_near(request):
            return _shared(self._keys.of_id(self._open))
        text = "send x-api-key, a Bearer token, or write the key into the URL: http://KEY@host/v1"
        raise Problem(401, "unauthorized", text, reason="missing")

    def _is_near(self, request: Request) -> bool:
        """Return whether the client is known to be in a network that needs no key."""
        if not is_client_known(request.scope):
            return False
        try:
            address = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _shared(principal: Principal) -> Principal:
    return dataclasses.replace(principal, user=SHARED_USER)

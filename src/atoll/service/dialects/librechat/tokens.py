"""Signed tokens of LibreChat (JWT): checked against the public keys that the operator gave.

SECURITY: only EdDSA and RS256 with a key of that type; the header's `kid` has to name one of our
keys. Every claim that the service relies on is required and checked.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from atoll.config import expand_home
from atoll.errors import ConfigError
from atoll.extras import hint
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from pathlib import Path

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

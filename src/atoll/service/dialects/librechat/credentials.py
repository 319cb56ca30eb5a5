"""Who asks, in the ways LibreChat has had: x-api-key, Bearer, Basic, a signed token, or nothing.

SECURITY: everything that is not exactly one valid credential is refused. A request without one is
let in only if the operator named a key for that, and only from the networks that they named.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import TYPE_CHECKING

from atoll.service.access.keys import USUAL_SCOPES, Principal, key_of_header
from atoll.service.dialects.librechat.tokens import Tokens
from atoll.service.http.problems import Problem
from atoll.service.http.proxies import is_client_known

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.service.access.keys import Keys
    from atoll.service.settings import ServiceSettings

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

"""What E2B's dialect keeps: the secret of access tokens, and facts of sandboxes beside a session.

SECURITY: a token is an HMAC of the sandbox's id under a secret of this process. It opens one
sandbox, with the rights that the key of the sandbox has at the time of each request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.files.live import FolderWatch
    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest

PREFIX = "/e2b"
_SIGNATURE = re.compile(r"v1_[A-Za-z0-9+/]{43}\Z", re.ASCII)
GONE = "The sandbox was not found"
"""The SDK looks for these words: they say that a sandbox does not run."""


class ProcessConfig(Struct, kw_only=True, omit_defaults=True):
    """How a process is started."""

    cmd: str = ""
    args: list[str] | None = None
    envs: dict[str, str] | None = None
    cwd: str = ""


@dataclass(slots=True)
class SandboxFacts:
    """What E2B's clients see of a sandbox that a session does not know itself."""

    template: str = "base"
    auto_resume: bool = False
    public_traffic: bool = False
    """Whether anybody may visit its ports: what E2B's clients expect, unless they say otherwise."""
    contexts: dict[str, str] = field(default_factory=dict)
    """The working folder of each code context besides the default one, by its id."""
    watchers: dict[str, FolderWatch] = field(default_factory=dict)
    commands: dict[int, ProcessConfig] = field(default_factory=dict)
    """How a process was started, by its pid."""


class E2B:
    """Tokens and facts of all sandboxes."""

    def __init__(self, service: Service) -> None:
        self._service, self._secret = service, secrets.token_bytes(32)
        self._facts: weakref.WeakKeyDictionary[HostedSession, SandboxFacts]
        self._facts = weakref.WeakKeyDictionary()
        self.watched: set[HostedSession] = set()
        """Sandboxes that may have watchers."""

    def facts(self, hosted: HostedSession) -> SandboxFacts:
        """Describe a sandbox; a session of another API has the defaults."""
        return self._facts.setdefault(hosted, SandboxFacts())

    def sweep(self) -> None:
        """Close the watchers of sandboxes that have ended."""
        for hosted in [hosted for hosted in self.watched if hosted.over]:
            self.watched.discard(hosted)
            watchers = self.facts(hosted).watchers
            while watchers:
                watchers.popitem()[1].close()

    def token(self, ident: str, plane: str) -> str:
        """Return the token that opens a sandbox: `envd`, or `traffic` for the interpreter."""
        made = hmac.digest(self._secret, f"{plane}:{ident}".encode(), "sha256")
        return base64.urlsafe_b64encode(made).decode().rstrip("=")

    def may_visit(self, hosted: HostedSession, token: str) -> bool:
        """Return whether a visitor may see the ports of a sandbox: all may, or the token is its."""
        if self.facts(hosted).public_traffic:
            return True
        return hmac.compare_digest(self.token(hosted.id, "traffic").encode(), token.encode())

    def check_key(self, request: Request) -> Principal:
        """Return whose key the header X-API-KEY has; 401 if it is not valid."""
        given = request.headers.getlist("x-api-key")
        if len(given) != 1:
            text = "send one header X-API-KEY: set E2B_API_KEY"
            raise Problem(401, "unauthorized", text, reason="missing")
        return self._service.keys.of_key(given[0])

    def check_token(self, request: Request) -> Principal:
        """Return who acts in a sandbox by its token.

        A wrong token and an unknown sandbox have the same answer: 502, as of one that is gone.
        """
        ident = request.headers.get("e2b-sandbox-id", "")
        given = {
            "envd": request.headers.get("x-access-token", ""),
            "traffic": request.headers.get("e2b-traffic-access-token", ""),
        }
        valid = [
            hmac.compare_digest(self.token(ident, plane).encode(), text.encode())
            for plane, text in given.items()
        ]
        if not any(valid):
            raise Problem(502, "sandbox", GONE)
        return self._owner(ident)

    def check_signature(self, request: Request) -> Principal:
        """Return who made a signed URL of a file.

        E2B's clients sign `path:operation:user:token[:expiration]`, and put no sandbox into the
        URL. SECURITY: only a path may have a colon, so that no text is signed for two requests.
        What all sandboxes have in common is hashed once, for a request without a key.
        """
        query = request.query_params
        given, until = query.get("signature", ""), query.get("signature_expiration", "")
        operation, user = "read" if request.method == "GET" else "write", query.get("username", "")
        timely = not until or (until.isdecimal() and int(until[:18]) >= time.time())
        if timely and ":" not in user and _SIGNATURE.match(given):
            head = f"{query.get('path', '')}:{operation}:{user}:"
            common = hashlib.sha256(head.encode("utf-8", "surrogateescape"))
            for ident in self._service.sessions.idents:
                made = _signature(common.copy(), self.token(ident, "envd"), until)
                if hmac.compare_digest(made, given):
                    request.scope["e2b.sandbox"] = ident
                    return self._owner(ident)
        text = "the signature is not valid, or has expired"
        raise Problem(401, "unauthorized", text, reason="signature")

    def sandbox(self, call: ApiRequest) -> HostedSession:
        """Return the sandbox of a request that has its token; 502 if it is gone or paused."""
        ident = call.request.scope.get("e2b.sandbox") or call.request.headers["e2b-sandbox-id"]
        hosted = call.service.sessions.get(call.principal, ident)
        if hosted.paused_as == "frozen" and not self.facts(hosted).auto_resume:
            raise Problem(502, "sandbox", f"{GONE}: it is paused, connect to it to resume it")
        return hosted

    def _owner(self, ident: str) -> Principal:
        hosted = self._service.sessions.find(ident)
        if hosted is None:
            raise Problem(502, "sandbox", GONE)
        return self._service.keys.of_id(hosted.key)


def _signature(common: hashlib._Hash, token: str, until: str) -> str:
    """Return the signature of a text whose beginning has been hashed."""
    common.update(f"{token}:{until}".encode() if until else token.encode())
    return "v1_" + base64.b64encode(common.digest()).decode().rstrip("=")

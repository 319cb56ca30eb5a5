"""HTTP to registries: redirects that keep credentials at home, tokens, proxies, certificates.

SECURITY: a header of authorisation goes to the host that it is for, never with a redirect to
another one. Plain http is used only for loopback addresses and for hosts that the user has listed
in ATOLL_INSECURE_REGISTRIES.
"""

from __future__ import annotations

import functools
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from atoll.egress import certificates
from atoll.errors import ImageError
from atoll.images import credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TIMEOUT_SECONDS = 60
LEAST_BYTES = 16 << 10
"""What has to come of an answer within each TIMEOUT_SECONDS, or it is given up."""
CHUNK = 1 << 20
MOST_REDIRECTS = 5
MOST_ANSWER = 1 << 20
INSECURE = "ATOLL_INSECURE_REGISTRIES"
_CERTIFICATES = ("/etc/containers/certs.d", "/etc/docker/certs.d", "~/.config/containers/certs.d")
_PARAMETER = re.compile(r'(\w+)\s*=\s*"([^"]*)"')
_ASKED: tuple[str, ...] = ("service", "scope")
_REFUSED = (401, 403)
FAILURES = (OSError, http.client.HTTPException)


class HTTPFailedError(Exception):
    """A registry's answer that is not a success."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        super().__init__(f"{status} {text}")


class Client:
    """Requests to one registry about one repository."""

    def __init__(self, host: str, name: str, image: str) -> None:
        self.host, self._name, self._image = host, name, image
        address = "registry-1.docker.io" if host == "docker.io" else host
        self._plain_allowed = is_plain_allowed(address)
        self.base = f"https://{address}"
        self._is_checked = not self._plain_allowed
        self._authorization = ""
        self._opener = _make_opener(address, plain=self._plain_allowed)

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | IO[bytes] | None = None,
    ) -> http.client.HTTPResponse:
        """Return the answer to a request; log in if that is asked for.

        `url` may be a path. HTTPFailedError for an answer that is not a success, ImageError if
        there is none.
        """
        self._choose_scheme()
        for attempt in range(2):
            try:
                return self._open(method, url, headers or {}, body)
            except urllib.error.HTTPError as exc:
                with exc:
                    challenge = exc.headers.get_all("WWW-Authenticate") or []
                    text = _message(exc)
                if exc.code == 401 and attempt == 0 and challenge and self._log_in(challenge):
                    if body is not None and not isinstance(body, bytes):
                        body.seek(0)
                    continue
                raise HTTPFailedError(exc.code, text) from None
            except FAILURES as exc:
                raise self._unreachable(exc) from None
        raise AssertionError

    def _open(
        self, method: str, url: str, headers: Mapping[str, str], body: Any
    ) -> http.client.HTTPResponse:
        whole = urllib.parse.urljoin(self.base, url)
        request = urllib.request.Request(whole, method=method, data=body)  # noqa: S310 - see opener
        request.add_header("User-Agent", "atoll")
        for name, value in headers.items():
            request.add_header(name, value)
        if self._authorization and _origin(whole) == _origin(self.base):
            request.add_unredirected_header("Authorization", self._authorization)
        answer: http.client.HTTPResponse = self._opener.open(request, timeout=TIMEOUT_SECONDS)
        return answer

    def _choose_scheme(self) -> None:
        """Use http for a host that may be used without TLS, and does not speak it."""
        if self._is_checked:
            return
        try:
            self._opener.open(f"{self.base}/v2/", timeout=TIMEOUT_SECONDS).close()
        except urllib.error.HTTPError as exc:
            exc.close()
        except FAILURES as exc:
            reason = getattr(exc, "reason", exc)
            if certificates.is_refusal(str(reason)):
                raise self._unreachable(exc) from None
            self.base = self.base.replace("https://", "http://")
        self._is_checked = True

    def _log_in(self, challenges: list[str]) -> bool:
        """Answer a challenge: set the header for the next attempt."""
        known = credentials.find(self.host, self._name)
        for challenge in challenges:
            kind, _, rest = challenge.partition(" ")
            fields = dict(_PARAMETER.findall(rest))
            if kind.lower() == "bearer" and "realm" in fields:
                self._authorization = f"Bearer {self._token(fields, known)}"
                return True
            if kind.lower() == "basic" and known is not None:
                self._authorization = known.basic
                return True
        return False

    def _token(self, fields: dict[str, str], known: credentials.Credentials | None) -> str:
        realm = urllib.parse.urljoin(self.base, fields.pop("realm"))
        try:
            _check_url(realm, plain=self._plain_allowed)
        except OSError as exc:
            raise self._unreachable(exc) from None
        asked: dict[str, str] = {key: fields[key] for key in _ASKED if key in fields}
        request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(asked)}")  # noqa: S310
        if known is not None and known.is_token:
            form = {**asked, "grant_type": "refresh_token", "client_id": "atoll"}
            form["refresh_token"] = known.secret
            body = urllib.parse.urlencode(form).encode()
            request = urllib.request.Request(realm, data=body)  # noqa: S310 - checked above
        elif known is not None:
            request.add_unredirected_header("Authorization", known.basic)
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                facts = json.loads(read_answer(answer, MOST_ANSWER))
        except urllib.error.HTTPError as exc:
            with exc:
                raise HTTPFailedError(exc.code, _message(exc)) from None
        except (*FAILURES, ValueError) as exc:
            raise self._unreachable(exc) from None
        token = facts.get("token") or facts.get("access_token") if isinstance(facts, dict) else None
        if not isinstance(token, str) or not token.isprintable():
            raise ImageError(self._image, f"the token server of {self.host} gave no token")
        return token

    def _unreachable(self, exc: BaseException) -> ImageError:
        reason = certificates.explain(str(getattr(exc, "reason", exc)) or type(exc).__name__)
        hint = f"A registry without TLS has to be listed in {INSECURE}."
        is_tls = "WRONG_VERSION_NUMBER" in reason or "wrong version number" in reason.lower()
        return ImageError(self._image, f"{self.host}: {reason}", hint if is_tls else "")

    def failure(self, exc: HTTPFailedError) -> ImageError:
        """Return the error for an answer that is not a success."""
        hints = {404: "Is the name right?", 429: "Log in, or wait: the registry limits requests."}
        log_in = f"Type: docker login {self.host} (or podman, or skopeo), then try again."
        hint = log_in if exc.status in _REFUSED else hints.get(exc.status, "")
        return ImageError(self._image, f"{self.host} answers {exc}", hint)


def read_pieces(answer: Any) -> Iterator[bytes]:
    """Yield what an answer has, as it comes; TimeoutError if it comes too slowly."""
    begun, size = time.monotonic(), 0
    while piece := answer.read1(CHUNK):
        yield piece
        size += len(piece)
        if time.monotonic() - begun > TIMEOUT_SECONDS:
            if size < LEAST_BYTES:
                raise TimeoutError(f"only {size:,} bytes came in {TIMEOUT_SECONDS} s")
            begun, size = time.monotonic(), 0


def read_answer(answer: Any, most: int) -> bytes:
    """Return a small answer; of a larger one, `most` bytes or a little more."""
    pieces, size = [], 0
    for piece in read_pieces(answer):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            break
    return b"".join(pieces)


def is_plain_allowed(address: str) -> bool:
    """Return whether a host may be used without TLS."""
    host = urllib.parse.urlsplit(f"//{address}").hostname or ""
    listed = re.split(r"[\s,]+", os.environ.get(INSECURE, ""))
    if address in listed or host in listed or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_url(url: str, *, plain: bool) -> None:
    """Raise OSError for a URL that must not be used."""
    parts = urllib.parse.urlsplit(url)
    allowed = parts.scheme == "https" or (parts.scheme == "http" and plain)
    if not allowed or (not is_plain_allowed(parts.netloc) and parts.scheme == "http"):
        raise OSError(f"it leads to {url[:200]!r}, which is not https")


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = MOST_REDIRECTS

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain

    def redirect_request(  # noqa: PLR0917 - as the standard library calls it
        self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any
    ) -> Any:
        """Follow a redirect; the header of authorisation stays behind if it leads elsewhere."""
        _check_url(newurl, plain=self._plain)
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and _origin(newurl) == _origin(req.full_url):
            new.unredirected_hdrs.update(req.unredirected_hdrs)
        return new


class _Connection(http.client.HTTPConnection):
    """A connection whose answer must begin in time: its headers may not trickle in."""

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the answer when its headers are there; end the connection if they take long."""
        end = functools.partial(self.sock.shutdown, socket.SHUT_RDWR)
        timer = threading.Timer(TIMEOUT_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """The same with TLS."""


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req: Any) -> Any:
        """Open a URL without TLS."""
        return self.do_open(_Connection, req)


class _Secure(urllib.request.HTTPSHandler):
    def https_open(self, req: Any) -> Any:
        """Open a URL with TLS."""
        return self.do_open(_SecureConnection, req, context=self._context)  # type: ignore[attr-defined]


def _make_opener(address: str, *, plain: bool) -> urllib.request.OpenerDirector:
    """Return an opener for http and https alone: no files, no ftp."""
    opener = urllib.request.OpenerDirector()
    proxies = {} if plain else urllib.request.getproxies()
    for handler in (
        urllib.request.ProxyHandler(proxies),
        _Plain(),
        _Secure(context=_trusted(address)),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(plain=plain),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _trusted(address: str) -> ssl.SSLContext:
    """Return what the system trusts, and the authorities that docker and podman have for a host."""
    context = ssl.create_default_context()
    for folder in _CERTIFICATES:
        for path in sorted((Path(folder).expanduser() / address).glob("*.crt")):
            try:
                context.load_verify_locations(path)
            except (OSError, ssl.SSLError):
                continue
    return context


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def _message(exc: urllib.error.HTTPError) -> str:
    """Return a registry's own words about an error, or HTTP's."""
    try:
        errors = json.loads(read_answer(exc, MOST_ANSWER))["errors"]
        words = str(errors[0].get("message") or errors[0]["code"])
    except (*FAILURES, ValueError, KeyError, IndexError, TypeError, AttributeError):
        words = str(exc.reason)
    return "".join(letter if letter.isprintable() else "?" for letter in words[:200])

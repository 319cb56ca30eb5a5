"""Requests to `atoll serve`, on connections that sandboxes of one event loop share."""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
import weakref
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2

from atoll import errors
from atoll.backends.remote import port_stream
from atoll.backends.remote.uploads import Uploads
from atoll.config import service_from_environment
from atoll.egress import certificates
from atoll.errors import BackendUnavailableError, ConfigError, SandboxError, SandboxLostError
from atoll.guest.shared import values
from atoll.rpc import faults
from atoll.sandbox.wire import answers

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine

    from atoll.config import SandboxConfig


PROBE_SECONDS = 2.0
_NOT_TLS = ("wrong_version_number", "record layer failure", "unexpected_eof", "http_request")
_OTHER_NAME = ("hostname mismatch", "ip address mismatch")
TRUST = (
    "If it is a certificate of the service's own, trust it with: "
    "export SSL_CERT_FILE=FILE (the file of `atoll serve --tls-certificate`)"
)


def refusal(url: str, failure: str) -> BackendUnavailableError | None:
    """Return the error for a connection that TLS refused; None if it was something else."""
    said = failure.lower()
    if any(text in said for text in _OTHER_NAME):
        host = urlsplit(url).hostname
        why = f"the certificate of {url} is for another name than {host}"
        return BackendUnavailableError("remote", why, "Use the name that the certificate has")
    if certificates.is_refusal(failure):
        reason = failure.rpartition("verify failed:")[2].partition(" (_ssl")[0].strip()
        why = f"the certificate of {url} is not trusted on this machine: {reason}"
        return BackendUnavailableError("remote", why, TRUST)
    if url.startswith("https:") and any(text in said for text in _NOT_TLS):
        return _other_scheme(url, "https", "http")
    return None


async def expected(url: str) -> BackendUnavailableError | None:
    """Return the error for an http:// URL at which the server speaks https; None otherwise.

    Such a server closes the connection without a word, so this asks it for a TLS handshake.
    """
    place = urlsplit(url)
    if place.scheme != "http" or place.hostname is None:
        return None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(
                place.hostname, place.port or 80, ssl=context, ssl_handshake_timeout=PROBE_SECONDS
            )
    except (OSError, TimeoutError):
        return None
    writer.transport.abort()
    return _other_scheme(url, "http", "https")


def _other_scheme(url: str, asked: str, spoken: str) -> BackendUnavailableError:
    better = spoken + url.removeprefix(asked)
    return BackendUnavailableError(
        "remote", f"what answers at {url} speaks {spoken}, not {asked}", f"Use {better}"
    )


HINT = "Type: atoll serve, and set ATOLL_URL and ATOLL_API_KEY to what it prints"
CONNECT_SECONDS = 10.0
QUIET_SECONDS = 10.0
"""How long an answer may take before the service is asked whether it lives."""
ALIVE_SECONDS = 10.0
"""How long it may take to answer that."""
LONGEST_SECONDS = 900.0
"""How long an answer may take at all: packages are built, and large states sent, in less."""
SILENT_SECONDS = 30.0
"""How long a stream of events may be silent; the service says every few seconds that it lives."""
MAX_EVENT_BYTES = 64 << 20
_NDJSON = "application/x-ndjson"
_BY_STATUS: dict[int, type[errors.AtollError]] = {
    400: ConfigError,
    404: errors.SandboxClosedError,
    408: SandboxLostError,
    410: SandboxLostError,
    413: ConfigError,
    422: ConfigError,
    429: errors.BusyError,
    503: errors.BusyError,
}


class RemoteConnection:
    """The connections to one service with one key; closed when the last sandbox is."""

    def __init__(self, url: str, key: str) -> None:
        secure = _tls() if url.startswith("https:") else False
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=16)
        headers = {"authorization": f"Bearer {key}", "accept-encoding": "identity"}
        self._client = httpx2.AsyncClient(
            base_url=f"{url.rstrip('/')}/api/v1",
            headers=headers,
            verify=secure,
            timeout=timeout,
            limits=limits,
            trust_env=False,
        )
        self.url, self.users, self._key = url, 0, key
        self.uploads = Uploads()

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Return the JSON of an answer, or None; raise the error that the service answered with."""
        response = await self.request(method, path, body, **options)
        return _decoded(response.content) if response.content else None

    async def download(self, path: str) -> bytes:
        """Return the bytes of a resource."""
        return bytes((await self.request("GET", path)).content)

    async def request(
        self, method: str, path: str, body: Any = None, **options: Any
    ) -> httpx2.Response:
        """Return an answer; raise the error that the service answered with."""
        if body is not None:
            options["content"] = encode(body)
        response = await self._while_alive(self._client.request(method, path, **options))
        if response.status_code >= 400:
            raise error_of(response.status_code, response.content)
        return response

    async def _while_alive(self, request: Coroutine[Any, Any, httpx2.Response]) -> httpx2.Response:
        """Await an answer; SandboxLostError once the service does not answer anything any more.

        A session may wait for packages, or a state for a large upload, so an answer may take long.
        HTTP has no connection on which a ping could overtake it (`rpc.keepalive`): the service is
        asked on another one, as a service that lives answers /health meanwhile.
        """
        answer, loop = asyncio.ensure_future(request), asyncio.get_running_loop()
        end = loop.time() + LONGEST_SECONDS
        try:
            while not (await asyncio.wait({answer}, timeout=QUIET_SECONDS))[0]:
                if loop.time() >= end:
                    text = f"{self.url} lives but gave no answer within {LONGEST_SECONDS:g} s"
                    raise SandboxLostError(text)
                await self._client.get(f"{self.url.rstrip('/')}/health", timeout=ALIVE_SECONDS)
            return await answer
        except httpx2.HTTPError as exc:
            raise await _unreachable(self.url, exc) from None
        finally:
            answer.cancel()

    async def events(
        self, path: str, body: dict[str, Any], key: str | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a new execution as they come."""
        headers = {"accept": _NDJSON} | ({} if key is None else {"idempotency-key": key})
        content = encode(body)
        timeout = httpx2.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with self._client.stream(
                "POST", path, content=content, headers=headers, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    raise error_of(response.status_code, await response.aread())
                async for line in _lines(response):
                    yield answers.mapping(_decoded(line))
        except httpx2.HTTPError as exc:
            raise await _unreachable(self.url, exc) from None

    async def connect(self, path: str) -> tuple[socket.socket, Coroutine[None, None, None]]:
        """Return a socket that is connected with a port, and the relay to run meanwhile."""
        url = f"{self.url.rstrip('/')}/api/v1{path}"
        secure = _tls() if url.startswith("https:") else None
        return await port_stream.connect(url, self._key, secure, error_of)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


_open: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[str, str], RemoteConnection]
] = weakref.WeakKeyDictionary()


def take(config: SandboxConfig) -> RemoteConnection:
    """Return the connection of this event loop for a configuration; `release` lets go of it."""
    url, key = address(config)
    known = _open.setdefault(asyncio.get_running_loop(), {})
    connection = known.get((url, key))
    if connection is None:
        connection = known[url, key] = RemoteConnection(url, key)
    connection.users += 1
    return connection


async def release(connection: RemoteConnection) -> None:
    """Let go of a connection; the last one to do so closes it."""
    connection.users -= 1
    if connection.users:
        return
    known = _open.get(asyncio.get_running_loop(), {})
    for place, open_connection in list(known.items()):
        if open_connection is connection:
            del known[place]
    await connection.close()


def address(config: SandboxConfig) -> tuple[str, str]:
    """Return URL and key of the service; BackendUnavailableError if one is not set."""
    url, key = service_from_environment()
    url, key = config.url or url, config.api_key or key
    if url is None or key is None:
        missing = "url" if url is None else "api_key"
        raise BackendUnavailableError("remote", f"no {missing} is given", HINT)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"url must begin with http:// or https://, not {url[:100]!r}")
    return url, key


def encode(value: Any) -> bytes:
    """Return JSON as UTF-8; a lone surrogate is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def error_of(status: int, content: bytes) -> errors.AtollError:
    """Return the error in a problem document, as the library would have raised it."""
    try:
        problem = json.loads(content)
        detail = str(problem["detail"])
    except (ValueError, LookupError, TypeError):
        problem, detail = {}, f"the service answered with status {status}"
    if "class" in problem:
        return faults.from_wire({"message": detail, "data": problem})
    if status == 403 and problem.get("code") in ("quota", "not_allowed"):
        return ConfigError(detail)
    if status in (401, 403, 421) and "file_error" not in problem:
        return BackendUnavailableError("remote", detail)
    kind = _BY_STATUS.get(status, errors.SandboxError)
    error: errors.AtollError = kind.__new__(kind)
    error.args = (detail,)
    vars(error)["problem"] = values.encode(problem)
    return error


def _decoded(content: bytes) -> Any:
    """Parse JSON; SandboxError if it is malformed, or has NaN or Infinity."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise SandboxError(f"the service sent no JSON: {str(exc)[:200]}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield lines by their line feeds: text may have other separators in it."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n") if b"\n" in piece else [rest + piece]
        if len(rest) > MAX_EVENT_BYTES:
            raise SandboxLostError("the service sent an event that is too large")
        for line in lines:
            if line:
                yield line


async def _unreachable(url: str, exc: httpx2.HTTPError) -> errors.AtollError:
    if isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout):
        return refusal(url, str(exc)) or BackendUnavailableError(
            "remote", f"nothing answers at {url}: {exc or 'it took too long to connect'}", HINT
        )
    if (refused := await expected(url)) is not None:
        return refused
    what = f"the connection to {url} broke ({type(exc).__name__}): what ran was cancelled"
    return SandboxLostError(what)


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()

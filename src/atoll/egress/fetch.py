"""`fetch` in a guest: one request through the policy, for guests that have no sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import h11

from atoll.egress.forward import Question, ServerSlot
from atoll.egress.http import asked_of
from atoll.egress.rules import Entry, RefusedError
from atoll.egress.url_guard import REDIRECTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.egress.http import Headers
    from atoll.egress.proxy import Proxy

MAX_REDIRECTS = 10
MAX_BYTES = 8 << 20
"""Most bytes of a response: it has to fit into one message to the guest."""


async def fetch(
    proxy: Proxy,
    url: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: str | bytes | None = None,
) -> dict[str, object]:
    """Return status, URL, headers and body of the answer; RefusedError if the policy refuses.

    Redirects of GET and HEAD are followed; each is checked like the first request.
    """
    data = body.encode() if isinstance(body, str) else body
    for _ in range(MAX_REDIRECTS + 1):
        answer = await _fetch_once(proxy, url, method, headers or {}, data)
        location = answer.headers.get("location")
        if answer.status not in REDIRECTS or location is None or method not in ("GET", "HEAD"):
            plain = {"status": answer.status, "url": url, "headers": answer.headers}
            return {**plain, "body": bytes(answer.body)}
        before, url = url, urljoin(url, location)
        if urlsplit(before)[:2] != urlsplit(url)[:2]:  # another host must not get them
            headers = {
                name: text for name, text in (headers or {}).items() if not _is_private(name)
            }
    raise RefusedError(f"more than {MAX_REDIRECTS} redirects")


def _is_private(name: str) -> bool:
    return name.lower() in ("authorization", "cookie")


async def _fetch_once(
    proxy: Proxy, url: str, method: str, headers: Mapping[str, str], data: bytes | None
) -> MemoryAnswer:
    if method == "CONNECT":
        raise RefusedError("fetch has no method CONNECT")
    event = _request(url, method, headers, data)
    asked, target = asked_of(event, None)
    entry, answer = Entry(asked, proxy.parts.budget), MemoryAnswer()
    slot = ServerSlot(proxy.parts.connector)
    body = None if not data else _pieces(data)
    try:
        await proxy.admit(asked)
        await proxy.forward(entry, Question(target, list(event.headers), body), answer, slot)
    except RefusedError as exc:
        raise proxy.refuse(entry, exc) from None
    finally:
        slot.close()
        proxy.parts.log.add(entry)
    return answer


def _request(url: str, method: str, headers: Mapping[str, str], data: bytes | None) -> h11.Request:
    """Return a request that h11 has validated; RefusedError if it is invalid."""
    if not isinstance(headers, Mapping):
        raise RefusedError("headers must be a dict")
    own = {name: value for name, value in headers.items() if str(name).lower() != "host"}
    lines = [("host", "fetch"), *own.items()]
    lines += [("content-length", str(len(data)))] if data else []
    try:
        return h11.Request(method=method, target=url, headers=lines)
    except (h11.LocalProtocolError, UnicodeEncodeError, TypeError) as exc:
        raise RefusedError(f"not a request: {exc}") from None


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


class MemoryAnswer:
    """Collects a response in memory."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()

    async def start(self, status: int, _reason: bytes, headers: Headers) -> None:
        """Take status and headers; several of one name are joined."""
        self.status = status
        for name, value in headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    async def data(self, piece: bytes) -> None:
        """Take a piece of the body; RefusedError if it becomes too large for a message."""
        self.body += piece
        if len(self.body) > MAX_BYTES:
            raise RefusedError(f"the answer has more than {MAX_BYTES} bytes, too many for fetch")

    async def end(self) -> None:
        """Do nothing: the response is complete."""

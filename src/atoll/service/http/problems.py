"""Errors as HTTP answers: RFC 9457 `application/problem+json`, one shape for all of them."""

from __future__ import annotations

import json
import sqlite3
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from atoll import errors
from atoll.files.inotify import TooManyWatchesError
from atoll.guest.shared import values

MAX_DETAIL = 10_000
RETRY_SECONDS = 2
_ESCAPED = bytes(range(32)) + b'"\\\x7f'


class Problem(Exception):  # noqa: N818 - the RFC's own word
    """A request that is refused: a status, a code for programs, and what to do."""

    def __init__(
        self, status: int, code: str, detail: str, *, retry_after: float | None = None,
        reason: str = "", **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail[:MAX_DETAIL]
        self.retry_after, self.more = retry_after, more
        self.reason = reason or code
        """Why, for the operator's counters: a client is not told what is wrong with its key."""

    @property
    def is_of_credentials(self) -> bool:
        """Whether the request does not say who asks, or not in a way that is valid."""
        return self.status == HTTPStatus.UNAUTHORIZED or self.code == "ambiguous"

    @property
    def ran_nothing(self) -> bool:
        """Whether the request was refused before anything was done for it."""
        return self.status in (400, 401, 403, 413, 415, 422, 429, 503)

    def as_json(self, request_id: str = "") -> dict[str, Any]:
        """Return the body."""
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "retryable": self.retry_after is not None or self.more.get("retryable", False),
            "request_id": request_id,
            **({} if self.retry_after is None else {"retry_after_seconds": self._seconds}),
            **{name: one for name, one in self.more.items() if name != "retryable"},
        }

    @property
    def _seconds(self) -> int:
        return max(1, round(self.retry_after or 0))

    def response(self, request_id: str = "") -> Response:
        """Return the answer."""
        headers = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(self._seconds)
        if "allow" in self.more:
            headers["allow"] = ", ".join(self.more["allow"])
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return Response(
            encode(self.as_json(request_id)), self.status, headers, "application/problem+json"
        )


def not_found(what: str) -> Problem:
    """Return the answer for an id that does not exist, or that another tenant has."""
    return Problem(
        404, "not_found", f"there is no such {what}: it has ended, expired, or never was"
    )


_STATUSES: tuple[tuple[type[errors.AtollError], int, str], ...] = (
    (errors.ConfigError, 400, "invalid"),
    (TooManyWatchesError, 429, "rate_limited"),
    (errors.BusyError, 503, "busy"),
    (errors.SandboxStartError, 503, "not_started"),
    (errors.SandboxClosedError, 404, "not_found"),
    (errors.SandboxLostError, 410, "session_lost"),
    (errors.BackendUnavailableError, 503, "unavailable"),
    (errors.FleetError, 503, "fleet"),
    (errors.UnsupportedError, 501, "unsupported"),
    (errors.StateError, 422, "state"),
    (errors.PackageError, 422, "packages"),
    (errors.VariableError, 422, "variable"),
)


def of_error(fault: Exception) -> Problem:
    """Return the answer for an error; a fault of our own is told without its text."""
    if isinstance(fault, Problem):
        return fault
    if isinstance(fault, sqlite3.OperationalError | OSError):
        detail = "the service cannot write to its folder: its disk may be full. Tell its operator"
        return Problem(507, "storage", detail)
    if not isinstance(fault, errors.AtollError):
        return Problem(500, "internal", f"the service failed: {type(fault).__name__}")
    status, code = 500, "sandbox"
    for kind, number, name in _STATUSES:
        if isinstance(fault, kind):
            status, code = number, name
            break
    more = {"class": type(fault).__name__, "fields": values.encode(vars(fault))}
    nothing_ran = isinstance(fault, errors.BusyError | errors.SandboxStartError)
    wait = RETRY_SECONDS if nothing_ran else None
    return Problem(status, code, str(fault), retry_after=wait, retryable=fault.retryable, **more)


def json_size(text: str) -> int:
    """Return how many bytes a text takes as JSON, at most."""
    data = text.encode("utf-8", "surrogatepass")
    return 2 + len(data) + 5 * (len(data) - len(data.translate(None, _ESCAPED)))


def encode(value: Any) -> bytes:
    """Return JSON; a lone surrogate, which a guest may put anywhere, is escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()

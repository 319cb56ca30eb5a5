"""Errors as HTTP answers: RFC 9457 `application/problem+json`, one shape for all of them."""

from __future__ import annotations

import json
import logging
import sqlite3
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from starlette.responses import Response

from atoll import errors
from atoll.config import LOCAL_IMAGES, cache_folder
from atoll.files.inotify import TooManyWatchesError
from atoll.guest.shared import values

T = TypeVar("T")
MAX_DETAIL = 10_000
RETRY_SECONDS = 2
_LOG = logging.getLogger("atoll.service")
_ESCAPED = bytes(range(32)) + b'"\\\x7f'


class ProblemInfo(Struct, kw_only=True):
    """A request that was refused, or failed: RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    """For programs; docs/service.md lists them."""
    detail: str
    retryable: bool
    request_id: str
    retry_after_seconds: int | UnsetType = UNSET
    allow: list[str] | UnsetType = UNSET
    """The methods that the path has."""
    file_error: str | UnsetType | None = UNSET
    error_class: str | UnsetType = field(default=UNSET, name="class")
    """The class of an error of Atoll, and its attributes."""
    fields: Any = UNSET
    error: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    expected_profile: str | UnsetType = UNSET
    actual_profile: str | UnsetType = UNSET


class Problem(Exception):  # noqa: N818 - the RFC's own word
    """A request that is refused: a status, a code for programs, and what to do."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retry_after: float | None = None,
        reason: str = "",
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail[:MAX_DETAIL]
        self.retry_after, self.more = retry_after, more
        self.reason = reason or code
        """Why, for the operator's counters: a client does not learn what is wrong with its key."""

    @property
    def is_of_credentials(self) -> bool:
        """Whether the request does not say who asks, or not in a way that is valid."""
        return self.status == HTTPStatus.UNAUTHORIZED or self.code == "ambiguous"

    @property
    def ran_nothing(self) -> bool:
        """Whether the request was refused before anything was done for it."""
        return self.status in (400, 401, 403, 413, 415, 422, 429, 503)

    def describe(self, request_id: str = "") -> ProblemInfo:
        """Return the body."""
        waits = self.retry_after is not None
        return ProblemInfo(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            request_id=request_id,
            retry_after_seconds=self._seconds if waits else UNSET,
            **{**self.more, "retryable": waits or self.more.get("retryable", False)},
        )

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
            encode(self.describe(request_id)), self.status, headers, "application/problem+json"
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
    (errors.ProcessError, 422, "process"),
    (errors.UnsupportedError, 501, "unsupported"),
    (errors.PortError, 502, "port"),
    (errors.StateError, 422, "state"),
    (errors.PackageError, 422, "packages"),
    (errors.ImageError, 422, "image"),
    (errors.VariableError, 422, "variable"),
)


def of_error(fault: Exception) -> Problem:
    """Return the answer for an error; of a fault of our own only the class is shown."""
    if isinstance(fault, Problem):
        return fault
    if isinstance(fault, sqlite3.OperationalError | OSError):
        detail = "the service cannot write to its folder: its disk may be full. Tell its operator"
        return Problem(507, "storage", detail)
    if not isinstance(fault, errors.AtollError):
        return Problem(500, "internal", f"the service failed: {type(fault).__name__}")
    if _names_files_of_host(fault):
        _LOG.warning("%s", fault)
        reason = "the service cannot read the files of this one"
        fault = errors.ImageError("", reason, "Tell its operator")
    status, code = 500, "sandbox"
    for kind, number, name in _STATUSES:
        if isinstance(fault, kind):
            status, code = number, name
            break
    more = {"error_class": type(fault).__name__, "fields": values.encode(vars(fault))}
    nothing_ran = isinstance(fault, errors.BusyError | errors.SandboxStartError)
    wait = RETRY_SECONDS if nothing_ran else None
    return Problem(status, code, str(fault), retry_after=wait, retryable=fault.retryable, **more)


def _names_files_of_host(fault: Exception) -> bool:
    """Return whether an error is about an image's files on this machine: not for clients."""
    if not isinstance(fault, errors.ImageError):
        return False
    local = fault.image.partition(":")[0] in ("", *LOCAL_IMAGES)
    return local or str(cache_folder()) in str(fault)


def json_size(text: str) -> int:
    """Return how many bytes a text takes as JSON, at most."""
    data = text.encode("utf-8", "surrogatepass")
    return 2 + len(data) + 5 * (len(data) - len(data.translate(None, _ESCAPED)))


def encode(value: Any) -> bytes:
    """Return JSON; a lone surrogate, which a guest may put anywhere, is escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=_decoded)).encode()


def decode(body: bytes, shape: type[T]) -> T:
    """Return JSON in its shape, also with escaped lone surrogates; ValueError if it is not so."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.convert(json.loads(body), type=shape)


def _decoded(raw: msgspec.Raw) -> Any:
    return json.loads(bytes(raw))

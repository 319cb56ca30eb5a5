"""Requests and responses as data, and as JSON with binary fields in base64."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError, StateError
from atoll.policy import check_positive
from atoll.types import Display, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

REFUSED = "refused"
"""The request could not be read; nothing ran."""
BAD_STATE = "bad-state"
"""The state could not be restored; nothing ran."""
FAILED = "failed"
"""No sandbox could be opened; nothing ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class REPLRequest:
    """Code to run, the state to start from, and whether to return the state."""

    code: str
    state: bytes | None = None
    capture_state: bool = False
    timeout: float | None = None
    """Seconds; None: the server's default."""

    def __post_init__(self) -> None:
        _check("code", self.code, str)
        _check("capture_state", self.capture_state, bool)
        check_positive("timeout", self.timeout)

    def as_json(self) -> dict[str, Any]:
        """Return the request as JSON data, without empty fields."""
        message: dict[str, Any] = {"code": self.code, "capture_state": self.capture_state}
        if self.state is not None:
            message["state"] = _base64(self.state)
        if self.timeout is not None:
            message["timeout"] = self.timeout
        return message

    @classmethod
    def from_json(cls, text: bytes) -> REPLRequest:
        """Return a request; ConfigError if it is invalid, StateError if the state is not base64."""
        message = _object(text)
        if "code" not in message:
            raise ConfigError("a request needs the field 'code'")
        return cls(
            code=message["code"],
            state=_state(message.get("state")),
            capture_state=message.get("capture_state") or False,
            timeout=message.get("timeout"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class REPLResponse:
    """The result of a request."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    state: bytes | None = None
    files: tuple[str, ...] = ()
    error: str | None = None
    kind: str = Outcome.OK.value
    """How it ended: an Outcome, or `refused`, `bad-state`, `failed` if nothing ran."""
    state_error: str | None = None
    """Why there is no state although one was requested."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Names of variables that are not in the state, and why."""
    displays: tuple[Display, ...] = ()
    duration_ms: float = 0.0

    @classmethod
    def nothing_ran(cls, kind: str, error: str) -> REPLResponse:
        """Return the response to a request for which nothing ran."""
        return cls(kind=kind, error=error, stderr=error, exit_code=1)

    def as_json(self) -> dict[str, Any]:
        """Return the response as JSON data."""
        return {
            **{attribute.name: getattr(self, attribute.name) for attribute in fields(self)},
            "state": None if self.state is None else _base64(self.state),
            "displays": [
                {"media_type": display.media_type, "data": _base64(display.data)}
                for display in self.displays
            ],
        }

    @classmethod
    def from_json(cls, text: bytes) -> REPLResponse:
        """Return a response; ValueError, TypeError or LookupError if it is invalid."""
        message = _object(text)
        known = {
            attribute.name: message[attribute.name]
            for attribute in fields(cls)
            if attribute.name in message
        }
        known["state"] = _state(message["state"])
        known["files"] = tuple(message["files"])
        known["displays"] = tuple(
            Display(media_type=display["media_type"], data=_bytes(display["data"]))
            for display in message.get("displays", ())
        )
        return cls(**known)


def _object(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"not JSON: {exc}") from None
    _check("a message", message, dict)
    return message  # type: ignore[no-any-return]


def _state(encoded: Any) -> bytes | None:
    if not encoded:
        return None
    try:
        return _bytes(encoded)
    except (TypeError, ValueError) as exc:
        raise StateError(f"the state is not valid base64: {exc}") from None


def _check(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(encoded: str) -> bytes:
    return base64.b64decode(encoded, validate=True)

"""What can go wrong with one request, as a value: what to raise, and whether to ask again.

SECURITY: a server's own words may repeat a prompt or a key. Of its codes only those listed here
get into an error; its words only as `server_words` shows them.
"""

from __future__ import annotations

import email.utils
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory import terminal_text
from atoll.errors import (
    ModelRefusedError,
    ModelReplyError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from atoll.text.redact import SHORTEST_KNOWN, Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.agent.rlm.models.types import Message
    from atoll.errors import ModelError


LONGEST = 300
RUN = 16
"""Least characters that the server's words and a prompt have in common if one quotes the other."""
_READ = 1 << 16
_SHOWN_RANGE = 2 * LONGEST
_PROMPT = "[prompt]"


def shown(message: str, keys: Mapping[str, str | None], messages: Sequence[Message]) -> str:
    """Return the server's words in quotation marks; "" if it said nothing, or sent HTML."""
    if not message.strip() or message.lstrip().startswith("<"):
        return ""
    known = {name: key for name, key in keys.items() if key and len(key) >= SHORTEST_KNOWN}
    line = " ".join(Redactor(known).redact(message[:_READ]).split())
    line = _without_prompt(line[:_SHOWN_RANGE], messages)
    return f"“{terminal_text.clip(terminal_text.line(line), LONGEST)}”"


def _without_prompt(line: str, messages: Sequence[Message]) -> str:
    """Replace what the line has in common with a message: RUN characters, or a short message."""
    prompts = [" ".join(message.content.split()) for message in messages]
    quoted = bytearray(len(line))
    for prompt in prompts:
        run = min(RUN, max(len(prompt), SHORTEST_KNOWN))
        for at in range(len(line) - run + 1):
            if line[at : at + run] in prompt:
                quoted[at : at + run] = b"\1" * run
    parts = [
        _PROMPT * (at == 0 or not quoted[at - 1]) if quoted[at] else char
        for at, char in enumerate(line)
    ]
    return "".join(parts)


TOO_LONG = "context_length_exceeded"
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
_TRANSIENT_CODES = frozenset(
    """
    api_error engine_overloaded internal_error overloaded_error rate_limit_error
    rate_limit_exceeded server_error timeout_error unavailable_error
""".split()
)
_LASTING_CODES = frozenset(
    f"""
    authentication_error billing_error billing_hard_limit_reached content_filter
    content_policy_violation {TOO_LONG} exceed_context_size_error insufficient_quota
    invalid_api_key invalid_request_error invalid_value model_not_found not_found_error
    not_supported_error permission_error request_too_large string_above_max_length
    unsupported_parameter unsupported_value
""".split()
)
UNPAID = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached"})
_TOO_LONG_WORDS = ("prompt is too long", "maximum context length", "context window", "context size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One request that failed."""

    kind: type[ModelError]
    reason: str
    retry: bool = False
    after: float | None = None
    """Seconds that the server wants to be left alone."""
    status: int | None = None
    code: str = ""
    unreached: bool = False
    """No connection was made: the address may be wrong, or the server not running."""
    told: str = ""
    """The server's own words. SECURITY: shown only by `server_words`."""

    def error(self, message: str) -> ModelError:
        """Return what to raise."""
        if issubclass(self.kind, ModelRefusedError):
            return self.kind(message, status=self.status, code=self.code)
        return self.kind(message)


def of_status(status: int, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the fault of an answer whose status is not a success."""
    code, message = _said(body)
    retry = (status in _TRANSIENT_STATUS or status >= 500) and code not in UNPAID
    return Fault(
        kind=ModelUnavailableError if retry else ModelRefusedError,
        reason=f"status {status}" + (f", {code}" if code else ""),
        retry=retry,
        after=_retry_after(headers) if retry else None,
        status=status,
        code=code,
        told=message,
    )


def in_answer(answer: Mapping[str, Any]) -> Fault | None:
    """Return the error inside a body with a status of success, if there is one."""
    if not answer.get("error"):
        return None
    code, message = _said(answer)
    retry = code in _TRANSIENT_CODES
    return Fault(
        kind=ModelUnavailableError if retry else ModelRefusedError,
        reason="the server reported " + (code or "an error"),
        retry=retry,
        code=code,
        told=message,
    )


def unreachable(what: str) -> Fault:
    """No connection, or it failed before an answer came."""
    return Fault(kind=ModelUnavailableError, reason=what, retry=True, unreached=True)


def silent(seconds: float) -> Fault:
    """Return the fault of a stream that stopped."""
    return Fault(kind=ModelTimeoutError, reason=f"silent for {seconds:g} s", retry=True)


def broken(what: str, *, retry: bool = False) -> Fault:
    """Return the fault of an answer that cannot be read."""
    return Fault(kind=ModelReplyError, reason=what, retry=retry)


def _said(body: Any) -> tuple[str, str]:
    """Return the code of an error, if it is a known one, and the server's own words."""
    if not isinstance(body, dict):
        return "", body if isinstance(body, str) else ""
    error = body.get("error")
    if not isinstance(error, dict):
        message = next(filter(None, (error, body.get("message"), body.get("detail"))), "")
        return "", message if isinstance(message, str) else ""
    message = error.get("message")
    message = message if isinstance(message, str) else ""
    given = [error.get("code"), error.get("type")]
    known = [
        item
        for item in given
        if isinstance(item, str) and item in _TRANSIENT_CODES | _LASTING_CODES
    ]
    code = known[0] if known else ""
    if "exceed_context_size_error" in known or _is_too_long(code, message):
        code = TOO_LONG
    return code, message


def _is_too_long(code: str, message: str) -> bool:
    words = message.lower()
    return code in {"", "invalid_request_error"} and any(text in words for text in _TOO_LONG_WORDS)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from Retry-After in either of its forms."""
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        seconds = _until(text)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _until(text: str) -> float:
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return math.nan

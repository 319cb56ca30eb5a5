"""Log lines of the service: for people, or as JSON for programs; each names the request it is of.

Code, output, keys and queries are in none of them.
"""

from __future__ import annotations

import json
import logging
import re
from contextvars import ContextVar
from typing import Any

from atoll.text.amounts import iso_time

FORMATS = ("text", "json")
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
LOG = logging.getLogger("atoll.service.requests")
REQUEST: ContextVar[tuple[str, str]] = ContextVar("atoll_request", default=("", ""))
"""The id and the `traceparent` of the request that a task, and tasks that it starts, work for."""


def request_id() -> str:
    """Return the id of the request that this task works for; empty without one."""
    return REQUEST.get()[0]


def _names() -> dict[str, str]:
    """Return what names the request in each line."""
    ident, parent = REQUEST.get()
    match = _TRACE.match(parent)
    return ({"request_id": ident} if ident else {}) | ({"trace_id": match[1]} if match else {})


def set_up(form: str, *, debug: bool) -> None:
    """Log to stderr in a form. As JSON every request is a line; as text only with `debug`.

    What else an operator has to know, such as sessions that go on, is logged in both forms.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("atoll.service").setLevel(logging.DEBUG if debug else logging.INFO)
    shown = debug or form == "json"
    LOG.setLevel(logging.NOTSET if shown else logging.WARNING)


def answered(method: str, route: str, status: int, seconds: float, code: str) -> None:
    """Log a request that was answered; as JSON its facts are fields."""
    ms = round(seconds * 1000, 1)
    facts = {"method": method, "route": route, "status": status, "ms": ms, "code": code}
    text = " ".join(map(str, (facts | _names()).values()))
    LOG.info("%s", text, extra={"facts": {"event": "request", **facts}})


class TextFormatter(logging.Formatter):
    """Writes a record for people. A message is one line: clients and guests chose parts of it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        """Return the line, with control characters written out."""
        text = super().formatMessage(record)
        if text.isprintable():
            return text
        return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on a line; JSON escapes what would begin another line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": iso_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        facts: dict[str, Any] | None = getattr(record, "facts", None)
        line |= {"event": "log", "message": record.getMessage()} if facts is None else facts
        line |= _names()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)

"""Handlers that look into an uploaded context: parts of its text, searches, what has been seen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.search.coverage import KINDS
from atoll.search.index import ContextIndex
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import as_json

if TYPE_CHECKING:
    from starlette.responses import Response

    from atoll.sandbox.context import Context
    from atoll.search.coverage import Ledger
    from atoll.service.http.requests import Call

MOST_CHARACTERS = 64 << 10
MOST_RANGES = 2_000
SEARCH_SECONDS = 10.0


class Search(bodies.Body, kw_only=True):
    """POST /contexts/{id}/search."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    most: int = 100
    start: int = 0
    end: int | None = None


async def list_contexts(call: Call) -> Response:
    """List the tenant's contexts, newest first."""
    return as_json({"items": call.service.objects.list(call.principal, "context")})


async def text(call: Call) -> Response:
    """Return a part of a context, at most 65,536 characters."""
    context, seen = await _opened(call)
    start = call.number("start", 0)
    end = min(call.number("end", start + MOST_CHARACTERS), start + MOST_CHARACTERS, context.length)
    part = await asyncio.to_thread(lambda: ContextIndex.of(context).text(start, max(start, end)))
    seen.show(start, start + len(part))
    found = {"start": start, "end": start + len(part), "length": context.length, "text": part}
    return as_json(found)


async def search(call: Call) -> Response:
    """Find the lines of a context that have a pattern, which RE2 understands."""
    given = await call.json(Search)
    context, seen = await _opened(call)
    options: dict[str, Any] = {
        name: getattr(given, name) for name in ("most", "literal", "ignore_case", "start", "end")
    }
    found = await asyncio.to_thread(
        lambda: ContextIndex.of(context).grep(given.pattern, seconds=SEARCH_SECONDS, **options)
    )
    seen.scan(*found.scanned)
    for hit in found.hits:
        seen.show(hit.at, hit.at + len(hit.text))
    hits = [
        {"line": one.line, "start": one.start, "end": one.end, "at": one.at, "text": one.text}
        for one in found.hits
    ]
    return as_json(
        {"hits": hits, "more": found.more, "total": found.total, "counted": found.counted}
    )


async def sections(call: Call) -> Response:
    """Return the headings of a context, in order."""
    context, _ = await _opened(call)
    found = await asyncio.to_thread(lambda: ContextIndex.of(context).sections())
    return as_json({"items": [msgspec.to_builtins(one) for one in found]})


async def coverage(call: Call) -> Response:
    """Return what was seen of a context: through these routes, or with `run` by an agent."""
    ident = call.query("run")
    if ident:
        found = call.service.runs.get(call.principal, ident).facts.get("coverage") or {}
        return as_json({**found, "ranges": None})
    _, seen = await _opened(call)
    ranges = {kind: seen.ranges(kind)[:MOST_RANGES] for kind in KINDS}
    return as_json({**seen.coverage().to_dict(), "ranges": ranges})


async def _opened(call: Call) -> tuple[Context, Ledger]:
    """Return a context with what has been seen of it since it was first looked into."""
    context = await call.service.contexts.open(call.principal, call.path["context"])
    if call.service.objects.describe(call.principal, "context", call.path["context"]).get("json"):
        raise Problem(422, "not_text", "the context is data, not text: look into it in a session")
    return context, call.service.contexts.seen(call.principal, context)

"""Handlers that look into an uploaded context: parts of its text, searches, what has been seen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Struct, UnsetType

from atoll.search.coverage import KINDS
from atoll.search.grep import Hit
from atoll.search.index import ContextIndex
from atoll.search.sections import Section
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.storage.objects import StoredObject

if TYPE_CHECKING:
    from atoll.sandbox.context import Context
    from atoll.search.coverage import CoverageLog
    from atoll.service.http.requests import ApiRequest

MAX_CHARACTERS = 64 << 10
MAX_RANGES = 2_000
SEARCH_SECONDS = 10.0


class Search(bodies.Body, kw_only=True):
    """POST /contexts/{id}/search."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    most: int = 100
    start: int = 0
    end: int | None = None


class ContextList(Struct):
    """The tenant's contexts, newest first."""

    items: list[StoredObject]


class ContextText(Struct):
    """A part of a context."""

    start: int
    end: int
    length: int
    text: str


class ContextHits(Struct):
    """Lines that have the pattern."""

    hits: tuple[Hit, ...]
    more: bool
    total: int
    counted: bool


class ContextSections(Struct):
    """The headings of a context, in order."""

    items: tuple[Section, ...]


class ContextCoverage(Struct, kw_only=True):
    """How much of a context was seen, and through these routes also which parts."""

    length: int | UnsetType = UNSET
    scanned: int | UnsetType = UNSET
    shown: int | UnsetType = UNSET
    scanned_share: float | UnsetType = UNSET
    shown_share: float | UnsetType = UNSET
    map: str | UnsetType = UNSET
    ranges: dict[str, list[tuple[int, int]]] | None = None


async def list_contexts(call: ApiRequest) -> ContextList:
    """List the tenant's contexts, newest first."""
    return ContextList(call.service.objects.list(call.principal, "context"))


async def text(call: ApiRequest) -> ContextText:
    """Return a part of a context, at most 65,536 characters."""
    context, seen = await _opened(call)
    start = call.number("start", 0)
    end = min(call.number("end", start + MAX_CHARACTERS), start + MAX_CHARACTERS, context.length)
    part = await asyncio.to_thread(lambda: ContextIndex.of(context).text(start, max(start, end)))
    seen.show(start, start + len(part))
    return ContextText(start, start + len(part), context.length, part)


async def search(call: ApiRequest) -> ContextHits:
    """Find the lines of a context that have a pattern, which RE2 understands."""
    given = await call.json(Search)
    context, seen = await _opened(call)
    options = msgspec.structs.asdict(given)
    result = await asyncio.to_thread(
        lambda: ContextIndex.of(context).grep(seconds=SEARCH_SECONDS, **options)
    )
    seen.scan(*result.scanned)
    for hit in result.hits:
        seen.show(hit.at, hit.at + len(hit.text))
    return ContextHits(result.hits, result.more, result.total, result.counted)


async def sections(call: ApiRequest) -> ContextSections:
    """Return the headings of a context, in order."""
    context, _ = await _opened(call)
    return ContextSections(await asyncio.to_thread(lambda: ContextIndex.of(context).sections()))


async def coverage(call: ApiRequest) -> ContextCoverage:
    """Return a context's coverage: through these routes, or with `run` by an agent."""
    ident = call.query("run")
    if ident:
        try:
            known = call.service.runs.get(call.principal, ident).facts.coverage
            return msgspec.convert(known or {}, ContextCoverage)
        except msgspec.ValidationError:  # of a run elsewhere, which may report anything
            return ContextCoverage()
    _, seen = await _opened(call)
    ranges = {kind: seen.ranges(kind)[:MAX_RANGES] for kind in KINDS}
    return msgspec.convert({**seen.coverage().to_dict(), "ranges": ranges}, ContextCoverage)


async def _opened(call: ApiRequest) -> tuple[Context, CoverageLog]:
    """Return a context with its coverage."""
    context = await call.service.contexts.open(call.principal, call.path["context"])
    if call.service.objects.describe(call.principal, "context", call.path["context"]).json is True:
        raise Problem(422, "not_text", "the context is data, not text: look into it in a session")
    return context, call.service.contexts.seen(call.principal, context)

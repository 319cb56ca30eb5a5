"""Contexts of requests, in shared memory: uploaded ones once, however many sessions have them.

Each is a memory file that sandboxes map; no text or value of it is kept beside that. What the file
takes is counted for each tenant that has it, until the last sandbox or reader is gone.
SECURITY: the same bytes are in memory once for all tenants; what was seen of them is each tenant's.
"""

from __future__ import annotations

import asyncio
import json
import sys
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from atoll.errors import ConfigError
from atoll.guest.shared import values
from atoll.sandbox.context import INLINE_LIMIT, Context, TextShape
from atoll.search.coverage import CoverageLog
from atoll.search.index import ContextIndex

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.config import SandboxConfig
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.service.access.admission import Budget, Holding
    from atoll.service.access.keys import Principal
    from atoll.service.http.bodies import ContextOf
    from atoll.service.storage.objects import Objects

    _Place = tuple[Path, bool]

MAX_LOOKED_INTO = 8
"""Contexts that are kept in memory because somebody reads or searches them."""
INDEX_COST = 2
"""What the index of a context takes, at most, for each byte of it."""
_WHAT = "the context"


class Contexts:
    """The contexts of all tenants, by the files of their bytes."""

    def __init__(self, objects: Objects, budget: Budget) -> None:
        self._objects, self._budget = objects, budget
        self._known: weakref.WeakValueDictionary[_Place, Context] = weakref.WeakValueDictionary()
        self._holdings: weakref.WeakValueDictionary[tuple[_Place, str], Holding]
        self._holdings = weakref.WeakValueDictionary()
        self._seen: weakref.WeakKeyDictionary[Context, dict[str, CoverageLog]]
        self._seen = weakref.WeakKeyDictionary()
        self._looked_into: OrderedDict[tuple[Context, str], tuple[Holding, Holding]] = OrderedDict()
        """By context and tenant: what the context takes, and what its index takes."""
        budget.reclaim.append(self._close_oldest)

    async def give(
        self, principal: Principal, callbacks: ClientCallbacks, given: ContextOf | None
    ) -> Any:
        """Return the context that a request names, for a SandboxConfig; None if it names none.

        The request does not hold it any more afterwards.
        """
        if given is None:
            return None
        if sum(part is not UNSET for part in (given.text, given.value, given.id)) != 1:
            raise ConfigError("context has to have one of text, value and id")
        if given.id is not UNSET:
            original, holding = await self._uploaded(principal, str(given.id))
            context: Any = original.dup()
            context.tie = original, holding
        elif given.text is not UNSET:
            context = await self._of_text(principal, str(given.text))
        else:
            context = await self._of_value(principal, given.value)
        given.text = given.value = UNSET
        if isinstance(context, Context):
            callbacks.context = object()
            context.keep(callbacks.context)  # the caller has it: it need not be read here
        else:
            callbacks.context = context
        return context

    async def open(self, principal: Principal, ident: str) -> Context:
        """Return an uploaded context to look into; the last few stay in memory for that."""
        context, holding = await self._uploaded(principal, ident)
        place = context, principal.tenant
        if place not in self._looked_into:
            index = self._budget.admit(principal, INDEX_COST * context.size, "the index of it")
            self._looked_into[place] = holding, index
        self._looked_into.move_to_end(place)
        while len(self._looked_into) > MAX_LOOKED_INTO:
            self._close(next(iter(self._looked_into)))
        return context

    def seen(self, principal: Principal, context: Context) -> CoverageLog:
        """Return what a tenant has seen of a context through the API."""
        return self._seen.setdefault(context, {}).setdefault(
            principal.tenant, CoverageLog(context.length)
        )

    async def _uploaded(self, principal: Principal, ident: str) -> tuple[Context, Holding]:
        path = await self._objects.fetch(principal, "context", ident)
        is_json = self._objects.describe(principal, "context", ident).json is True
        place = path, is_json  # one tenant may have as data what another has as text
        if (context := self._known.get(place)) is not None:
            return context, self._hold(principal, place, context.size)
        shape = await asyncio.to_thread(_shape_of, path)
        holding = self._hold(principal, place, shape.size)
        context = await asyncio.to_thread(Context.from_utf8, path, shape, json_text=is_json)
        return self._known.setdefault(place, context), holding  # another request may be first

    def _hold(self, principal: Principal, place: _Place, size: int) -> Holding:
        """Return what a tenant holds a context with: once, however many sessions have it."""
        holding = self._holdings.get((place, principal.tenant))
        if holding is None:
            holding = self._budget.admit(principal, size, _WHAT)
            self._holdings[place, principal.tenant] = holding
        return holding

    async def _of_text(self, principal: Principal, text: str) -> Context | str:
        if len(text) <= INLINE_LIMIT:
            return text
        holding = self._budget.admit(principal, sys.getsizeof(text), _WHAT)
        context = await asyncio.to_thread(Context.from_text, text)
        context.tie = holding
        return context

    async def _of_value(self, principal: Principal, value: Any) -> Any:
        """Return a context of a value as JSON; ConfigError if it is not one."""
        try:
            decoded, text = await asyncio.to_thread(_checked, value)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"the context is not a value: {exc}") from None
        if len(text) <= INLINE_LIMIT:
            return decoded
        del decoded
        holding = self._budget.admit(principal, len(text), _WHAT)
        context = await asyncio.to_thread(Context.from_json, text, None)
        context.tie = holding
        return context

    def _close_oldest(self, tenant: str | None) -> bool:
        """Drop the index that a tenant, or with None any tenant, has used longest ago."""
        for place in self._looked_into:
            if tenant in (None, place[1]):
                self._close(place)
                return True
        return False

    def _close(self, place: tuple[Context, str]) -> None:
        _, index = self._looked_into.pop(place)
        index.release()
        if not any(place[0] is other for other, _ in self._looked_into):
            ContextIndex.of(place[0]).close()


def close(config: SandboxConfig) -> None:
    """Free the context of a sandbox that has ended, which has a handle of its own on it.

    To wait for the garbage collector could keep it for minutes: callbacks refer to each other.
    """
    if isinstance(config.context, Context):
        config.context.close()


def as_json(context: Any) -> bytes:
    """Return the context of a session as JSON, as `values.encode` writes it."""
    if isinstance(context, Context):
        return context.to_json()
    return json.dumps(values.encode(context)).encode()


def _checked(value: Any) -> tuple[Any, str]:
    return values.decode(value), json.dumps(value)


def _shape_of(path: Path) -> TextShape:
    try:
        return TextShape.of(path)
    except UnicodeDecodeError as exc:
        raise ConfigError(f"the context is not UTF-8 text: {exc.reason}") from None

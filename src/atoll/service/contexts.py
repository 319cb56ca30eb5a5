"""Contexts of requests: uploaded ones are mapped once, however many sessions have them.

SECURITY: the same bytes are in memory once for all tenants; what was seen of them is each tenant's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from atoll.errors import ConfigError
from atoll.explore.ledger import Ledger
from atoll.guest import values
from atoll.service.objects import load_context

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.config import SandboxConfig
    from atoll.context import Context
    from atoll.daemon.client_callbacks import ClientCallbacks
    from atoll.service.keys import Principal
    from atoll.service.objects import Objects
    from atoll.service.shapes import ContextOf

    _Place = tuple[Path, bool]

MOST_LOOKED_INTO = 8
"""Contexts that are kept in memory because somebody reads or searches them."""


class Contexts:
    """The contexts of all tenants, by the files of their bytes."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._known: weakref.WeakValueDictionary[_Place, Context] = weakref.WeakValueDictionary()
        self._seen: weakref.WeakKeyDictionary[Context, dict[str, Ledger]]
        self._seen = weakref.WeakKeyDictionary()
        self._looked_into: OrderedDict[Context, None] = OrderedDict()

    async def give(
        self, principal: Principal, config: SandboxConfig, callbacks: ClientCallbacks,
        given: ContextOf | None,
    ) -> SandboxConfig:  # fmt: skip
        """Return the configuration with the context that a request names."""
        if given is None:
            return config
        if given.id is not UNSET:
            context: Any = (await self._uploaded(principal, str(given.id))).dup()
            callbacks.context = object()
            context.keep(callbacks.context)  # the caller has it: it need not be read here
        elif given.text is not UNSET:
            callbacks.context = context = given.text
        else:
            try:
                callbacks.context = context = values.decode(given.value)
            except (ValueError, RecursionError) as exc:
                raise ConfigError(f"the context is not a value: {exc}") from None
        return dataclasses.replace(config, context=context)

    async def open(self, principal: Principal, ident: str) -> Context:
        """Return an uploaded context to look into; the last few stay in memory for that."""
        context = await self._uploaded(principal, ident)
        self._looked_into[context] = None
        self._looked_into.move_to_end(context)
        while len(self._looked_into) > MOST_LOOKED_INTO:
            self._looked_into.popitem(last=False)
        return context

    def seen(self, principal: Principal, context: Context) -> Ledger:
        """Return what a tenant has seen of a context through the API."""
        return self._seen.setdefault(context, {}).setdefault(
            principal.tenant, Ledger(context.length)
        )

    async def _uploaded(self, principal: Principal, ident: str) -> Context:
        path = await self._objects.fetch(principal, "context", ident)
        is_json = self._objects.describe(principal, "context", ident).get("json") is True
        place = path, is_json  # one tenant may have as data what another has as text
        context = self._known.get(place)
        if context is None:
            context = await asyncio.to_thread(load_context, path, is_json=is_json)
            context = self._known.setdefault(place, context)  # another request may be first
        return context

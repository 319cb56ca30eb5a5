"""One route: where it is served, for which scope, by which handler, with which shapes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from starlette.responses import Response

from atoll.service.http.requests import ApiRequest, Json

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.http.problems import Problem

Handler = Callable[["ApiRequest"], Awaitable[Any]]
"""Returns a Struct, or a list of them, that becomes JSON; None for 204; or a whole Response."""
Refuse = Callable[["Problem", str], Response]
Who = Callable[["Service", "Request"], "Principal"]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. Without a scope it is open to everybody."""

    method: str
    path: str
    handler: Handler
    scope: str | None
    body: Any = None
    """The shape of a JSON body, or bytes; None without a body."""
    status: int = 200
    """That of an answer which is neither empty nor a whole Response."""
    new_work: bool = False
    """Whether it is refused while the service drains."""
    keyed: bool = False
    """Whether it can be asked for once, by an idempotency key."""
    who: Who | None = None
    """Finds out who asks, where that is not by an API key."""
    refuse: Refuse | None = None
    """Writes an error, where its shape is not the native one."""
    security: str = "key"
    """The name of the way to say who asks, in the OpenAPI document."""
    basic: bool = False
    """Whether the key may be in the URL: clients that can send no header make Basic of it."""
    patience: float = 0
    """Seconds that a request may wait if its key makes too many; 0: it is refused at once."""
    detaches: bool = False
    """Whether it can be answered with 202 while its work goes on."""
    query: str = ""
    """Names of parameters of the query; required ones end with `!`."""
    answer: Any = None
    """The shape of a JSON answer, where the handler's annotation does not say it."""
    page: bool = False
    """Whether it is a page of the console, which any page may link to."""

    @property
    def answers(self) -> list[Any]:
        """The shapes of its JSON answers: none for a stream, for bytes and for 204."""
        if self.answer is not None:
            return [self.answer]
        returned = get_type_hints(self.handler, localns={"ApiRequest": ApiRequest})["return"]
        return [shape for kind in _members(returned) for shape in _shapes(kind)]

    @property
    def is_empty(self) -> bool:
        """Whether it answers with 204."""
        return (
            get_type_hints(self.handler, localns={"ApiRequest": ApiRequest})["return"] is NoneType
        )


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _shapes(returned: Any) -> tuple[Any, ...]:
    if get_origin(returned) is Json:
        return _members(get_args(returned)[0])
    is_response = isinstance(returned, type) and issubclass(returned, Response)
    return () if is_response or returned is NoneType else (returned,)

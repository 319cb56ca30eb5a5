"""Files of sessions as MCP resources: listed, completed, and announced when they change.

A change is announced to every `subscriptions/listen` stream that asked for it, and to clients of
older protocols on their own connection: the list to all, a file to those that subscribed to it.

SECURITY: a client lists and completes the sessions of its own owner. Notifications carry the
address of a file, which only a client that named it gets, or nothing.
"""

from __future__ import annotations

import contextlib
import mimetypes
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from atoll.extras import hint
from atoll.integrations.mcp_requests import CURRENT, owner_of

try:
    from mcp.server import MCPServer
    from mcp.server.subscriptions import (
        InMemorySubscriptionBus,
        ResourcesListChanged,
        ResourceUpdated,
    )
    from mcp.shared.exceptions import MCPError
    from mcp_types import (
        INVALID_PARAMS,
        Completion,
        EmptyResult,
        InitializeResult,
        Resource,
        ResourcesCapability,
        ResourceTemplateReference,
    )
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_resources needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.context import CallNext, HandlerResult
    from mcp.server.subscriptions import ServerEvent
    from mcp_types import CompletionArgument, CompletionContext

    from atoll.integrations.mcp_requests import Request
    from atoll.integrations.mcp_sessions import Session, Sessions

FILES = "atoll://{session}/files/{+path}"
OUTPUTS = "atoll://{session}/outputs/{number}"
MAX_LISTED = 1000
MAX_COMPLETIONS = 100
MAX_SUBSCRIPTIONS = 1000
MAX_SUBSCRIBERS = 1000


class Server(MCPServer[None]):
    """The server, whose list of resources has the files of the client's sessions."""

    files: FileResources

    async def list_resources(self) -> list[Resource]:
        """Return the files of the sessions of the client that asks."""
        return await self.files.listed()


class Bus(InMemorySubscriptionBus):
    """The events of open `subscriptions/listen` streams; it knows whether there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners = 0

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Register a listener; return what ends it."""
        end, self.listeners = super().subscribe(listener), self.listeners + 1
        open_ = [True]

        def unsubscribe() -> None:
            end()
            self.listeners -= open_.pop() if open_ else 0

        return unsubscribe


class FileResources:
    """Lists files of sessions, and announces what has changed."""

    def __init__(self, sessions: Sessions, bus: Bus) -> None:
        self._sessions, self._bus = sessions, bus
        self._subscribed: dict[str, set[str]] = {}
        """What older clients subscribed to, by owner; that of the oldest is forgotten first."""

    async def middleware(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        """Answer subscriptions of older protocols, and say at their handshake that they work."""
        token = CURRENT.set(ctx)
        try:
            if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS and ctx.method in (
                "resources/subscribe",
                "resources/unsubscribe",
            ):
                return self._subscribe(ctx)
            result = await call_next(ctx)
        finally:
            CURRENT.reset(token)
        if ctx.method == "initialize":
            return _with_capability(result)
        return result

    async def listed(self) -> list[Resource]:
        """Return the files of all sessions of the client that asks."""
        resources: list[Resource] = []
        for session in self._sessions.of(owner_of(CURRENT.get())):
            for path, known in (await self._files(session)).items():
                size = int(known.partition(" ")[0])
                kind = mimetypes.guess_type(path)[0]
                uri = file_uri(session.name, path)
                resources.append(
                    Resource(uri=uri, name=path.rpartition("/")[2], mime_type=kind, size=size)
                )
        return resources[:MAX_LISTED]

    async def changed(self, request: Request, session: Session) -> None:
        """Announce how a session's files differ from those that clients know."""
        known = session.files
        subscribed = self._subscribed.get(owner_of(request).name, set())
        if known is None and not self._bus.listeners and not subscribed:
            return  # no client has asked about files
        with contextlib.suppress(Exception):  # the call has succeeded, whatever becomes of this
            now = await self._files(session)
            old = known or {}
            if known is None or set(old) != set(now):
                await self._bus.publish(ResourcesListChanged())
                await _send(request.session.send_resource_list_changed())
            for path in {*old, *now}:
                if old.get(path) != now.get(path):
                    uri = file_uri(session.name, path)
                    await self._bus.publish(ResourceUpdated(uri=uri))
                    if uri in subscribed:
                        await _send(request.session.send_resource_updated(uri))

    async def complete(
        self, ref: Any, argument: CompletionArgument, context: CompletionContext | None
    ) -> Completion | None:
        """Complete the session, path or number of a resource template."""
        if not isinstance(ref, ResourceTemplateReference) or ref.uri not in (FILES, OUTPUTS):
            return None
        given = (context.arguments if context is not None else None) or {}
        values = defaultdict[str, list[str]](list)
        sessions = {
            candidate.name: candidate for candidate in self._sessions.of(owner_of(CURRENT.get()))
        }
        values["session"] = list(sessions)
        if (chosen := sessions.get(given.get("session", ""))) is not None:
            values["path"] = list(await self._files(chosen)) if argument.name == "path" else []
            values["number"] = chosen.outputs()
        fitting = [
            candidate for candidate in values[argument.name] if candidate.startswith(argument.value)
        ]
        more = len(fitting) > MAX_COMPLETIONS
        return Completion(values=fitting[:MAX_COMPLETIONS], total=len(fitting), has_more=more)

    def _subscribe(self, ctx: Request) -> EmptyResult:
        uri = (ctx.params or {}).get("uri")
        if not isinstance(uri, str):
            raise MCPError(INVALID_PARAMS, "a subscription has the uri of a resource")
        owner = owner_of(ctx).name
        known = self._subscribed.setdefault(owner, set())
        if len(self._subscribed) > MAX_SUBSCRIBERS:
            del self._subscribed[next(iter(self._subscribed))]
        if ctx.method == "resources/unsubscribe":
            known.discard(uri)
        elif len(known) >= MAX_SUBSCRIPTIONS:
            raise MCPError(INVALID_PARAMS, f"there are {MAX_SUBSCRIPTIONS:,} subscriptions already")
        else:
            known.add(uri)
        return EmptyResult()

    async def _files(self, session: Session) -> dict[str, str]:
        """Return size and time of each file; of a session that runs code, as last known."""
        if not session.busy or session.files is None:
            infos = await session.run(lambda: session.box.files.glob("**"))
            session.files = {
                info.path: f"{info.size} {info.modified_at}"
                for info in infos[:MAX_LISTED]
                if not info.is_dir
            }
        return session.files


def file_uri(session: str, path: str) -> str:
    """Return the address of a file."""
    return f"atoll://{session}/files/{quote(path)}"


async def _send(sending: Any) -> None:
    with contextlib.suppress(Exception):  # a client without a stream for it, or one that is gone
        await sending


def _with_capability(result: HandlerResult) -> HandlerResult:
    if isinstance(result, InitializeResult):
        result.capabilities.resources = ResourcesCapability(subscribe=True, list_changed=True)
    elif isinstance(result, dict):
        result["capabilities"]["resources"] = {"subscribe": True, "listChanged": True}
    return result

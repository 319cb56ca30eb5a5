"""Handlers of sessions, variables, states and contexts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import FileResponse

from atoll.errors import StateError
from atoll.sandbox import variables, verbs
from atoll.sandbox.base import check_code
from atoll.service import clock
from atoll.service.core.history import CellPage
from atoll.service.core.sessions import ForkTree, SessionPage, config_size
from atoll.service.core.tenant_session import MarkInfo, SessionInfo
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, ProblemInfo, encode, of_error
from atoll.service.http.requests import Json
from atoll.service.storage.objects import ObjectFacts, SnapshotFacts, StoredObject
from atoll.service.storage.spool import Spool
from atoll.state.envelope import describe_state
from atoll.types import Variable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest

MAX_FORKS = 20
BINARY = "application/octet-stream"


class InterruptedSession(Struct):
    """A session whose code was asked to stop."""

    id: str


class ForkOutcome(Struct):
    """A clone, or why it is missing."""

    session: SessionInfo | UnsetType = UNSET
    problem: ProblemInfo | UnsetType = UNSET


class NamedMark(Struct):
    """A checkpoint by its id, and its name if it has one."""

    id: str
    name: str


class Marks(Struct):
    """The checkpoints of a session, oldest first."""

    marks: list[NamedMark]


class Validity(Struct):
    """Whether code compiles; if not, the line and the message."""

    valid: bool
    line: int | UnsetType | None = UNSET
    message: str | UnsetType = UNSET


class VariableList(Struct):
    """The variables of a session."""

    variables: list[Variable]
    truncated: bool


class VariableValue(Struct):
    """A variable's value as docs/protocol.md writes it."""

    name: str
    value: Any


async def create(call: ApiRequest) -> Json[SessionInfo]:
    """Open a session."""
    given = await call.json(bodies.NewSession)
    service, principal = call.service, call.principal

    async def work() -> SessionInfo:
        state = None if given.state is None else await read_state(call, given.state)
        config, callbacks = await service.configure(principal, given, state=state)
        life = bodies.Life(
            idle_seconds=given.idle_seconds,
            max_seconds=given.max_seconds,
            metadata=bodies.check_metadata(given.metadata),
        )
        made = await service.sessions.open(
            principal, config, callbacks, life, bodies.context_id(given.context)
        )
        await service.announce(made)
        return made.describe()

    return await call.once(work)


async def list_all(call: ApiRequest) -> SessionPage:
    """List the tenant's sessions."""
    return call.service.sessions.page(
        call.principal, call.number("limit", 50), call.query("cursor"), call.query("state")
    )


async def show(call: ApiRequest) -> SessionInfo:
    """Describe a session."""
    session = call.session
    await session.measure_disk()
    return session.describe()


async def history(call: ApiRequest) -> CellPage:
    """List the cells of a session, oldest first, from the one after `after`."""
    return call.session.history.page(call.number("after", 0), call.number("limit", 100))


async def tree(call: ApiRequest) -> ForkTree:
    """Return the fork tree that a session is in, with checkpoints."""
    return call.service.sessions.tree(call.session)


async def change(call: ApiRequest) -> SessionInfo:
    """Change how long a session lives, and its metadata."""
    session, life = call.session, await call.json(bodies.Life)
    bodies.check_metadata(life.metadata)
    call.service.sessions.change(session, life)
    await call.service.announce(session)
    return session.describe()


async def delete(call: ApiRequest) -> None:
    """End a session."""
    await call.service.sessions.end(call.session)


async def restart(call: ApiRequest) -> SessionInfo:
    """Throw a session's state away and start it afresh, with another context."""
    hosted, given = call.session, await call.json(bodies.Restart)
    named = bodies.context_id(given.context)
    context = await call.service.contexts.give(call.principal, hosted.callbacks, given.context)
    config = dataclasses.replace(hosted.session.config, context=context, state=None)
    await call.service.sessions.restart(hosted, config)
    hosted.facts.context_id = named
    await call.service.announce(hosted)
    return hosted.describe()


async def cancel(call: ApiRequest) -> InterruptedSession:
    """Interrupt what runs in a session."""
    await call.session.session.cancel()
    return InterruptedSession(call.path["session"])


async def pause(call: ApiRequest) -> SessionInfo:
    """Freeze a session: nothing of it runs, and its memory is kept. The next call thaws it."""
    hosted = call.session
    await hosted.session.pause()
    return hosted.describe()


async def resume(call: ApiRequest) -> SessionInfo:
    """Let a session that was paused run again."""
    hosted = call.session
    async with hosted.session:
        hosted.touch()
    return hosted.describe()


async def fork(call: ApiRequest) -> Json[list[ForkOutcome]]:
    """Make live clones of a session."""
    given, parent = await call.json(bodies.Fork), call.session
    if not 1 <= given.count <= MAX_FORKS:
        raise Problem(400, "invalid", f"count must be from 1 to {MAX_FORKS}")

    async def work() -> list[ForkOutcome]:
        made: list[ForkOutcome] = []
        for _ in range(given.count):
            try:
                with call.service.metrics.forks.time():
                    child = await call.service.sessions.fork(
                        call.principal, parent, given.name[:256]
                    )
            except Exception as exc:
                if not made:
                    raise
                made.append(ForkOutcome(problem=of_error(exc).describe()))
            else:
                made.append(ForkOutcome(session=child.describe()))
                await call.service.announce(child)
        parent.touch()
        return made

    return await call.once(work)


async def checkpoint(call: ApiRequest) -> Json[NamedMark]:
    """Keep a session's present state to roll back to."""
    given, hosted = await call.json(bodies.Mark), call.session

    async def work() -> NamedMark:
        ident = await hosted.session.carry_out(verbs.Checkpoint())
        hosted.marks[ident] = MarkInfo(ident, given.name[:256], clock.now())
        hosted.touch()
        return NamedMark(ident, given.name[:256])

    return await call.once(work)


async def checkpoints(call: ApiRequest) -> Marks:
    """List a session's checkpoints, oldest first."""
    hosted = call.session
    idents = await hosted.session.carry_out(verbs.Branches())
    names = {mark.id: mark.name for mark in hosted.marks.values()}
    return Marks([NamedMark(ident, names.get(ident, "")) for ident in idents])


async def rollback(call: ApiRequest) -> None:
    """Restore a session to a checkpoint."""
    hosted, given = call.session, await call.json(bodies.Rollback)
    await hosted.session.carry_out(verbs.Rollback(mark=given.mark))
    hosted.rolled_back = given.mark
    hosted.touch()


async def validate(call: ApiRequest) -> Validity:
    """Return whether code compiles, without running it; if not, the line and the message."""
    hosted, given = call.session, await call.json(bodies.Code)
    check_code(given.code)
    fault = await hosted.session.carry_out(verbs.Validate(code=given.code))
    return Validity(True) if fault is None else Validity(False, fault.line, fault.message)


async def list_variables(call: ApiRequest) -> VariableList:
    """List a session's variables with type and size."""
    async with call.session.session as box:
        listed = await box.variables(hidden=call.flag("hidden"))
    return VariableList(list(listed), listed.truncated)


async def get_variable(call: ApiRequest) -> VariableValue:
    """Return a variable's value; with `exists=1`, only whether there is one."""
    name, hosted = variables.check_name(call.path["name"]), call.session
    request: verbs.VariableRequest = verbs.GetVariable(name=name, plain=call.flag("plain"))
    if call.flag("exists"):
        request = verbs.HasVariable(name=name)
    answer = await hosted.session.carry_out(request)
    if answer.get("found") is not True:
        raise Problem(404, "no_variable", f"the session has no variable {name!r}")
    return VariableValue(name, answer.get("value"))


async def set_variable(call: ApiRequest) -> None:
    """Set a variable."""
    name, hosted = variables.check_new_name(call.path["name"]), call.session
    given = await call.json(bodies.Value)
    answer = await hosted.session.carry_out(verbs.SetVariable(name=name, value=given.value))
    if answer.get("set") is not True:
        raise variables.cannot_set(name, "the guest did not take it")


async def set_tools(call: ApiRequest) -> None:
    """Let the session's code call these tools of its client's, and no others."""
    hosted, given = call.session, await call.json(bodies.NewTools)
    if len(given.tools) > bodies.MAX_TOOLS:
        raise Problem(400, "invalid", f"at most {bodies.MAX_TOOLS} tools")
    size = len(encode(given.tools))
    if size > bodies.MAX_CONFIG_BYTES:
        raise Problem(413, "too_large", f"tools have at most {bodies.MAX_CONFIG_BYTES:,} bytes")
    if hosted.held is not None:
        hosted.held.resize(config_size(hosted.session.config) + size)
    await hosted.session.carry_out(verbs.SetTools(tools=given.tools))
    hosted.touch()
    await call.service.announce(hosted)


async def save(call: ApiRequest) -> Json[StoredObject]:
    """Save a session's variables and files as a state that a new session can start with."""
    await call.body()  # an idempotency key is for one body
    hosted = call.session

    async def work() -> StoredObject:
        async with saved_state(call, hosted) as blob:
            return await keep_state(call, blob)

    return await call.once(work)


async def upload_state(call: ApiRequest) -> StoredObject:
    """Keep a state that was saved before; 422 if it was not saved here, or changed since."""
    with Spool(call) as spool:
        await spool.fill(call.pieces("max_upload_bytes", slow=True))
        return await keep_state(call, await spool.read())


async def show_state(call: ApiRequest) -> StoredObject | FileResponse:
    """Return a saved state's bytes, or with `Accept: application/json` what is known of it."""
    objects = call.service.objects
    await objects.learn(call.principal, "state", call.path["state"])
    if "application/json" in call.request.headers.get("accept", ""):
        return objects.describe(call.principal, "state", call.path["state"])
    path = await objects.fetch(call.principal, "state", call.path["state"])
    return FileResponse(path, media_type=BINARY)


async def delete_state(call: ApiRequest) -> None:
    """Delete a saved state."""
    await call.service.objects.delete(call.principal, "state", call.path["state"])


async def upload_context(call: ApiRequest) -> StoredObject:
    """Upload a text, or JSON, that sessions can have as `context` without sending it again."""
    is_json = call.request.headers.get("content-type", "").startswith("application/json")
    return await call.service.objects.put(
        call.principal,
        "context",
        call.pieces("max_context_bytes", slow=True),
        call.service.settings.context_seconds,
        ObjectFacts(json=is_json, name=call.query("name")[:200]),
    )


async def show_context(call: ApiRequest) -> StoredObject:
    """Describe a context."""
    objects, ident = call.service.objects, call.path["context"]
    await objects.learn(call.principal, "context", ident)
    return objects.describe(call.principal, "context", ident)


async def delete_context(call: ApiRequest) -> None:
    """Delete a context; sessions that have it keep it."""
    await call.service.objects.delete(call.principal, "context", call.path["context"])


@contextlib.asynccontextmanager
async def saved_state(call: ApiRequest, hosted: HostedSession) -> AsyncIterator[bytes]:
    """Yield a session's state; what it may take is counted before it is made."""
    most = hosted.session.config.max_state_bytes
    with call.service.memory.admit(call.principal, most, "a state of max_state_bytes") as held:
        async with hosted.session as box:
            blob = await box.save()
        hosted.touch()
        held.resize(len(blob))
        yield blob


async def read_state(call: ApiRequest, ident: str) -> bytes:
    """Return a state of the tenant, held with the request; 404 if it has none of that id."""
    objects = call.service.objects
    path = await objects.fetch(call.principal, "state", ident)
    call.held.grow(objects.describe(call.principal, "state", ident).size)
    return await asyncio.to_thread(path.read_bytes)


async def keep_state(
    call: ApiRequest, blob: bytes, snapshot: SnapshotFacts | UnsetType = UNSET
) -> StoredObject:
    """Keep a saved state for the caller; describe it.

    StateError if it was not saved here. The nodes of a fleet check a state themselves.
    """
    left_out: dict[str, str] = {}
    try:
        left_out = dict((await asyncio.to_thread(describe_state, blob)).left_out)
    except StateError:
        if call.service.fleet is None:
            raise

    async def pieces() -> AsyncIterator[bytes]:
        yield blob

    return await call.service.objects.put(
        call.principal,
        "state",
        pieces(),
        call.service.settings.state_seconds,
        ObjectFacts(left_out=left_out, snapshot=snapshot),
    )

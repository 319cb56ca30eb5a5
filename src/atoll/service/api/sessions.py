"""Handlers of sessions, variables, states and contexts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from starlette.responses import FileResponse

from atoll.errors import AtollError
from atoll.sandbox import variables
from atoll.sandbox.base import check_code
from atoll.service import clock
from atoll.service.access import permissions
from atoll.service.core.sessions import config_size
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, encode, of_error
from atoll.service.http.requests import as_json, nothing
from atoll.service.storage.spool import Spool
from atoll.state.envelope import describe_state
from atoll.types import validity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import Call

MAX_FORKS = 20
BINARY = "application/octet-stream"


async def create(call: Call) -> Response:
    """Open a session."""
    given = await call.json(bodies.NewSession)
    service, principal = call.service, call.principal

    async def work() -> tuple[int, Any]:
        config, callbacks = service.prepare(
            given.config(
                principal.quota, service.settings, **permissions.wanted(given, service.settings)
            ),
            given.asks(),
        )
        config = await service.contexts.give(principal, config, callbacks, given.context)
        if given.state is not None:
            config = dataclasses.replace(config, state=await read_state(call, given.state))
        metadata = bodies.check_metadata(given.metadata)
        life = bodies.Life(
            idle_seconds=given.idle_seconds, max_seconds=given.max_seconds, metadata=metadata
        )
        made = await service.sessions.open(principal, config, callbacks, life)
        if given.context is not None and isinstance(given.context.id, str):
            made.context_id = given.context.id
        await service.announce(made)
        return 201, made.describe()

    return await call.once(work)


async def list_all(call: Call) -> Response:
    """List the tenant's sessions."""
    page = call.service.sessions.page(
        call.principal, call.number("limit", 50), call.query("cursor"), call.query("state")
    )
    return as_json(page)


async def show(call: Call) -> Response:
    """Return what is known of a session."""
    session = call.session
    await session.measure_disk()
    return as_json(session.describe())


async def history(call: Call) -> Response:
    """List the cells of a session, oldest first, from the one after `after`."""
    page = call.session.history.page(call.number("after", 0), call.number("limit", 100))
    return as_json(page)


async def tree(call: Call) -> Response:
    """Return the fork tree that a session is in, with checkpoints."""
    return as_json(call.service.sessions.tree(call.session))


async def change(call: Call) -> Response:
    """Change how long a session lives, and its metadata."""
    session, life = call.session, await call.json(bodies.Life)
    bodies.check_metadata(life.metadata)
    call.service.sessions.change(session, life)
    await call.service.announce(session)
    return as_json(session.describe())


async def delete(call: Call) -> Response:
    """End a session."""
    await call.service.sessions.end(call.session)
    return nothing()


async def restart(call: Call) -> Response:
    """Throw a session's state away and start it afresh, with another context."""
    hosted, given = call.session, await call.json(bodies.Restart)
    session = hosted.session
    config = dataclasses.replace(session.config, context=None, state=None)
    config = await call.service.contexts.give(
        call.principal, config, hosted.callbacks, given.context
    )
    await call.service.sessions.restart(hosted, config)
    hosted.context_id = None
    if given.context is not None and isinstance(given.context.id, str):
        hosted.context_id = given.context.id
    await call.service.announce(hosted)
    return as_json(hosted.describe())


async def cancel(call: Call) -> Response:
    """Interrupt what runs in a session."""
    await call.session.session.cancel()
    return as_json({"id": call.path["session"]}, 202)


async def pause(call: Call) -> Response:
    """Freeze a session: nothing of it runs, and its memory is kept. The next call thaws it."""
    hosted = call.session
    await hosted.session.pause()
    return as_json(hosted.describe())


async def resume(call: Call) -> Response:
    """Let a session that was paused run again."""
    hosted = call.session
    async with hosted.session.in_turn():
        hosted.touch()
    return as_json(hosted.describe())


async def fork(call: Call) -> Response:
    """Make live clones of a session."""
    given, parent = await call.json(bodies.Fork), call.session
    if not 1 <= given.count <= MAX_FORKS:
        raise Problem(400, "invalid", f"count must be from 1 to {MAX_FORKS}")

    async def work() -> tuple[int, Any]:
        made: list[dict[str, Any]] = []
        for _ in range(given.count):
            try:
                with call.service.metrics.forks.time():
                    child = await call.service.sessions.fork(
                        call.principal, parent, given.name[:256]
                    )
            except Exception as exc:
                if not made:
                    raise
                made.append({"problem": of_error(exc).as_json()})
            else:
                made.append({"session": child.describe()})
                await call.service.announce(child)
        parent.touch()
        return 201, made

    return await call.once(work)


async def checkpoint(call: Call) -> Response:
    """Keep a session's present state to roll back to."""
    given, hosted = await call.json(bodies.Mark), call.session

    async def work() -> tuple[int, Any]:
        async with hosted.session.in_turn() as box:
            mark = await box.checkpoint()
            hosted.session.note_checkpoint()
        hosted.marks[mark] = given.name[:256], clock.now()
        hosted.touch()
        return 201, {"id": mark, "name": given.name[:256]}

    return await call.once(work)


async def checkpoints(call: Call) -> Response:
    """List a session's checkpoints, oldest first."""
    hosted = call.session
    async with hosted.session.in_turn() as box:
        marks = await box.branches()
    return as_json({"marks": [{"id": m, "name": hosted.marks.get(m, ("",))[0]} for m in marks]})


async def rollback(call: Call) -> Response:
    """Restore a session to a checkpoint."""
    hosted, given = call.session, await call.json(bodies.Rollback)
    async with hosted.session.in_turn() as box:
        await box.rollback(given.mark)
    hosted.rolled_back = given.mark
    hosted.touch()
    return nothing()


async def validate(call: Call) -> Response:
    """Return whether code compiles, without running it; if not, the line and the message."""
    hosted, given = call.session, await call.json(bodies.Code)
    check_code(given.code)
    async with hosted.session.in_turn() as box:
        return as_json(validity(await box.find_fault(given.code)))


async def list_variables(call: Call) -> Response:
    """List a session's variables with type and size."""
    hosted = call.session
    async with hosted.session.in_turn() as box:
        found = await box.variables(hidden=call.flag("hidden"))
    rows = [{"name": v.name, "type": v.type, "size": v.size, "shape": v.shape} for v in found]
    return as_json({"variables": rows, "truncated": found.truncated})


async def get_variable(call: Call) -> Response:
    """Return a variable's value; with `exists=1`, only whether there is one."""
    name, hosted = variables.check_name(call.path["name"]), call.session
    method = "has_variable" if call.flag("exists") else "get_variable"
    params = {"name": name} if call.flag("exists") else {"name": name, "plain": call.flag("plain")}
    async with hosted.session.in_turn() as box:
        answer = await box.ask_variable(method, params)
    if answer.get("found") is not True:
        raise Problem(404, "no_variable", f"the session has no variable {name!r}")
    return as_json({"name": name, "value": answer.get("value")})


async def set_variable(call: Call) -> Response:
    """Set a variable."""
    name, hosted = variables.check_new_name(call.path["name"]), call.session
    given = await call.json(bodies.Value)
    async with hosted.session.in_turn() as box:
        answer = await box.ask_variable("set_variable", {"name": name, "value": given.value})
    if answer.get("set") is not True:
        raise variables.cannot_set(name, "the guest did not take it")
    return nothing()


async def set_tools(call: Call) -> Response:
    """Let the session's code call these tools of its client's, and no others."""
    hosted, given = call.session, await call.json(bodies.NewTools)
    if len(given.tools) > bodies.MAX_TOOLS:
        raise Problem(400, "invalid", f"at most {bodies.MAX_TOOLS} tools")
    size = len(encode(given.tools))
    if size > bodies.MAX_CONFIG_BYTES:
        raise Problem(413, "too_large", f"tools have at most {bodies.MAX_CONFIG_BYTES:,} bytes")
    if hosted.held is not None:
        hosted.held.resize(config_size(hosted.session.config) + size)
    await hosted.session.set_tools({"tools": given.tools})
    hosted.touch()
    await call.service.announce(hosted)
    return nothing()


async def save(call: Call) -> Response:
    """Save a session's variables and files as a state that a new session can start with."""
    await call.body()  # an idempotency key is for one body
    hosted = call.session

    async def work() -> tuple[int, Any]:
        async with saved_state(call, hosted) as blob:
            return 201, await keep_state(call, blob)

    return await call.once(work)


async def upload_state(call: Call) -> Response:
    """Keep a state that was saved before; it is checked when a session starts with it."""
    with Spool(call) as spool:
        await spool.fill(call.pieces("max_upload_bytes", slow=True))
        return as_json(await keep_state(call, await spool.read()), 201)


async def show_state(call: Call) -> Response:
    """Return a saved state's bytes, or with `Accept: application/json` what is known of it."""
    objects = call.service.objects
    await objects.learn(call.principal, "state", call.path["state"])
    if "application/json" in call.request.headers.get("accept", ""):
        return as_json(objects.describe(call.principal, "state", call.path["state"]))
    path = await objects.fetch(call.principal, "state", call.path["state"])
    return FileResponse(path, media_type=BINARY)


async def delete_state(call: Call) -> Response:
    """Delete a saved state."""
    await call.service.objects.delete(call.principal, "state", call.path["state"])
    return nothing()


async def upload_context(call: Call) -> Response:
    """Upload a text, or JSON, that sessions can have as `context` without sending it again."""
    is_json = call.request.headers.get("content-type", "").startswith("application/json")
    settings = call.service.settings
    pieces = call.pieces("max_context_bytes", slow=True)
    seconds, facts = settings.context_seconds, {"json": is_json, "name": call.query("name")[:200]}
    found = await call.service.objects.put(call.principal, "context", pieces, seconds, **facts)
    return as_json(found, 201)


async def show_context(call: Call) -> Response:
    """Return what is known of a context."""
    objects, ident = call.service.objects, call.path["context"]
    await objects.learn(call.principal, "context", ident)
    return as_json(objects.describe(call.principal, "context", ident))


async def delete_context(call: Call) -> Response:
    """Delete a context; sessions that have it keep it."""
    await call.service.objects.delete(call.principal, "context", call.path["context"])
    return nothing()


@contextlib.asynccontextmanager
async def saved_state(call: Call, hosted: HostedSession) -> AsyncIterator[bytes]:
    """Yield a session's state; what it may take is counted before it is made."""
    most = hosted.session.config.max_state_bytes
    with call.service.memory.admit(call.principal, most, "a state of max_state_bytes") as held:
        async with hosted.session.in_turn() as box:
            blob = await box.save()
        hosted.touch()
        held.resize(len(blob))
        yield blob


async def read_state(call: Call, ident: str) -> bytes:
    """Return a state of the tenant, held with the request; 404 if it has no such one."""
    objects = call.service.objects
    path = await objects.fetch(call.principal, "state", ident)
    call.held.grow(objects.describe(call.principal, "state", ident)["size"])
    return await asyncio.to_thread(path.read_bytes)


async def keep_state(call: Call, blob: bytes, **more: Any) -> dict[str, Any]:
    """Keep a saved state for the caller; return what is known of it."""
    left_out: dict[str, str] = {}
    with contextlib.suppress(AtollError):
        left_out = dict(describe_state(blob).left_out)

    async def pieces() -> AsyncIterator[bytes]:
        yield blob

    seconds = call.service.settings.state_seconds
    facts = {"left_out": left_out, **more}
    return await call.service.objects.put(call.principal, "state", pieces(), seconds, **facts)

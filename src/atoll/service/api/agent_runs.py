"""Handlers of runs of agents: started, reported, listed, watched, cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from starlette.responses import FileResponse

from atoll.agent.rlm.core import RLM
from atoll.errors import AtollError
from atoll.service.core.agent_runs import RunFacts, RunInfo, RunPage, RunTree, bounded
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import EventResponse, Json
from atoll.service.storage.idempotency import Answer

if TYPE_CHECKING:
    from atoll.agent.trajectory import Event
    from atoll.service.core.agent_runs import AgentRun
    from atoll.service.http.requests import ApiRequest

LONGEST_LINE = 4 << 20
UPLOAD_BYTES = 256 << 20
UPLOAD_COST = 4
"""Bytes held for each byte of a line: the line, its values, and the line written anew."""
UPLOAD_SECONDS = 86_400.0


class NewRun(bodies.Body, kw_only=True):
    """POST /runs."""

    question: str
    model: str
    sub_model: str | None = None
    context: bodies.ContextOf | None = None
    budget: dict[str, Any] | None = None
    max_depth: int = 1


async def start(call: ApiRequest) -> Json[RunInfo]:
    """Ask an agent a question over a context; its events can be watched at once."""
    given = await call.json(NewRun)
    allowed = call.service.settings.models
    for model in {given.model, given.sub_model or given.model}:
        if model not in allowed:
            known = ", ".join(allowed) or "none: start the service with --model NAME"
            raise Problem(
                403, "model", f"the model {model[:100]!r} is not offered; there is {known}"
            )

    async def work() -> RunInfo:
        context = await _context(call, given)
        runs, loop = call.service.runs, asyncio.get_running_loop()
        facts = RunFacts(question=bounded(given.question), model=bounded(given.model))
        run = runs.draft(call.principal, facts)

        def record(event: Event) -> None:
            loop.call_soon_threadsafe(runs.record, run, event)

        try:
            agent = RLM(
                given.model,
                sub_model=given.sub_model,
                budget=given.budget or {},
                max_depth=given.max_depth,
                backend="native",
                trajectory=run.path,
                on_event=record,
            )
            runs.begin(run)  # it counts from here on, and can be cancelled
        except BaseException:
            runs.discard(run)
            raise
        held = call.held.share()
        run.task = asyncio.ensure_future(_answer(call, agent, run, given, context))
        run.task.add_done_callback(lambda _: held.release())
        return run.describe()

    return await call.once(work)


async def upload(call: ApiRequest) -> RunInfo:
    """Take the trajectory of a run elsewhere, one event a line; lines are shown as they come."""
    runs = call.service.runs
    run, rest = runs.begin(runs.draft(call.principal)), b""
    try:
        async for piece in call.pieces(UPLOAD_BYTES, seconds=UPLOAD_SECONDS):
            call.held.resize(UPLOAD_COST * (len(rest) + len(piece)))
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:
                raise Problem(413, "too_large", f"a line has at most {LONGEST_LINE:,} bytes")
            runs.append(run, [line for line in lines if line.strip()])
        runs.append(run, [rest] if rest.strip() else [])
    finally:
        runs.end(run, "cut off")
    return run.describe()


async def list_runs(call: ApiRequest) -> RunPage:
    """List the tenant's runs, newest first."""
    return call.service.runs.page(call.principal, call.number("limit", 50), call.query("cursor"))


async def show(call: ApiRequest) -> RunInfo:
    """Describe a run: question, answer, evidence, coverage, cost."""
    return _run(call).describe()


async def tree(call: ApiRequest) -> Json[RunTree]:
    """Return a run's turns and calls as a tree, with time and cost of each."""
    return Json.of(Answer(200, await _run(call).tree()))


async def events(call: ApiRequest) -> EventResponse:
    """Stream a run's events, from the one after `after` or Last-Event-ID, until it ends."""
    pause = call.service.settings.keepalive_seconds
    return EventResponse(call, _run(call).events(call.after, pause))


async def trajectory(call: ApiRequest) -> FileResponse:
    """Return a run's trajectory file."""
    run = _run(call)
    name = f"{run.id}.jsonl"
    return FileResponse(run.path, media_type="application/octet-stream", filename=name)


async def cancel(call: ApiRequest) -> RunInfo:
    """Stop a run that this service carries out."""
    run = _run(call)
    if run.task is not None:
        run.task.cancel()
    return run.describe(listed=True)


async def delete(call: ApiRequest) -> None:
    """Forget a run that has ended."""
    call.service.runs.delete(call.principal, call.path["run"])


async def _context(call: ApiRequest, given: NewRun) -> Any:
    if given.context is None:
        return None
    if isinstance(given.context.id, str):
        return await call.service.contexts.open(call.principal, given.context.id)
    return given.context.text if isinstance(given.context.text, str) else given.context.value


async def _answer(call: ApiRequest, agent: RLM, run: AgentRun, given: NewRun, context: Any) -> None:
    """Let the agent answer the question; note how that ended."""
    outcome, model = "failed", given.model
    try:
        async with agent:
            await agent.completion(given.question, context)
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    except AtollError as exc:
        if run.facts.error is UNSET:
            run.facts.error = f"{type(exc).__name__}: {exc}"
    finally:
        await asyncio.sleep(0)  # events of other threads are taken first
        call.service.runs.end(run, outcome)
        metrics, facts = call.service.metrics, run.facts
        metrics.runs.labels(facts.outcome).inc()
        metrics.run_cost.labels(model).inc(facts.usd or 0)


def _run(call: ApiRequest) -> AgentRun:
    return call.service.runs.get(call.principal, call.path["run"])

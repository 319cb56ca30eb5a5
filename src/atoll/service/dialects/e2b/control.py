"""Handlers of E2B's control plane: sandboxes are made, found, paused, forked and killed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from msgspec import Struct

from atoll.hosting.pool.tiers import TIERS
from atoll.service import clock
from atoll.service.access import permissions
from atoll.service.api.sessions import MAX_FORKS, read_state
from atoll.service.core.sessions import MAX_PAGE
from atoll.service.dialects.e2b import snapshots
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, of_error
from atoll.service.http.requests import as_json, nothing
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from starlette.responses import Response

    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.dialects.e2b.dialect import SandboxFacts
    from atoll.service.http.requests import Call

ENVD_VERSION = "0.5.2"
"""What the SDK may use of the sandbox; later versions have uploads and events we do not."""
DEFAULT_SECONDS = 300.0
MEBIBYTE = 1 << 20


class NewSandbox(Struct, kw_only=True):
    """POST /v2/sandboxes; fields that are not known are passed over."""

    templateID: str = "base"  # noqa: N815 - as E2B writes it
    timeout: float | None = None
    metadata: dict[str, str] | None = None
    envVars: dict[str, str] | None = None  # noqa: N815
    autoPause: bool | None = None  # noqa: N815
    autoResume: dict[str, Any] | None = None  # noqa: N815
    allow_internet_access: bool | None = None
    network: Any = None
    mcp: Any = None
    iam: Any = None
    volumeMounts: Any = None  # noqa: N815


class Timeout(Struct, kw_only=True):
    """A body that may say how many seconds a sandbox lives from now on."""

    timeout: float | None = None
    count: int = 1


async def create(call: Call) -> Response:
    """Open a sandbox, which is a session."""
    given = await call.json(NewSandbox)
    _check_supported(given)
    service, principal = call.service, call.principal
    hosts = list(service.settings.session_hosts) if given.allow_internet_access else []
    asked = bodies.NewSession(
        template=given.templateID if given.templateID in TIERS else None,
        env=given.envVars or {},
        network=hosts or None,
    )
    life = bodies.Life(
        max_seconds=_seconds(given.timeout), metadata=bodies.check_metadata(given.metadata)
    )

    snapshot = snapshots.find(call, given.templateID)

    async def work() -> tuple[int, Any]:
        config, callbacks = service.prepare(
            asked.config(
                principal.quota, service.settings, **permissions.wanted(asked, service.settings)
            ),
            asked.asks(),
        )
        if snapshot is not None:
            config = replace(config, state=await read_state(call, snapshot["id"]))
        hosted = await service.sessions.open(principal, config, callbacks, life)
        facts = service.e2b.facts(hosted)
        facts.template = given.templateID[: bodies.MAX_METADATA_TEXT]
        facts.auto_resume = bool((given.autoResume or {}).get("enabled"))
        await service.announce()
        return 201, _sandbox(call, hosted)

    return await call.once(work)


async def connect(call: Call) -> Response:
    """Return a sandbox with its tokens; one that is paused runs again."""
    hosted, given = call.session, await call.json(Timeout)
    async with hosted.session.in_turn():
        hosted.touch()
    until = clock.now() + _seconds(given.timeout) - hosted.created
    most = call.service.settings.max_seconds
    hosted.max_seconds = max(hosted.max_seconds, min(until, most))
    return as_json(_sandbox(call, hosted))


async def list_all(call: Call) -> Response:
    """List the tenant's sandboxes, newest first; `metadata` and `state` choose among them."""
    own = call.service.sessions.of(call.principal)[::-1]
    states = [one for one in call.query("state").split(",") if one]
    wanted = dict(parse_qsl(call.query("metadata"), keep_blank_values=True))
    own = [
        one
        for one in own
        if (not states or _state(one) in states)
        and all(one.metadata.get(name) == text for name, text in wanted.items())
    ]
    limit = max(1, min(call.number("limit", 100), MAX_PAGE))
    after = [n for n, one in enumerate(own) if one.id == call.query("nextToken")]
    begin = after[0] + 1 if after else 0
    shown = own[begin : begin + limit]
    response = as_json([_detail(call, one) for one in shown])
    if begin + limit < len(own):
        response.headers["x-next-token"] = shown[-1].id
    return response


async def show(call: Call) -> Response:
    """Return what is known of a sandbox."""
    return as_json(_detail(call, call.session))


async def set_timeout(call: Call) -> Response:
    """Let a sandbox end a number of seconds from now."""
    hosted, given = call.session, await call.json(Timeout)
    seconds = clock.now() - hosted.created + _seconds(given.timeout)
    call.service.sessions.change(hosted, bodies.Life(max_seconds=seconds))
    return nothing()


async def pause(call: Call) -> Response:
    """Freeze a sandbox, with its memory; 409 if it is paused already."""
    hosted = call.session
    if hosted.session.frozen:
        raise Problem(409, "paused", "the sandbox is paused already")
    await hosted.session.pause()
    return nothing()


async def fork(call: Call) -> Response:
    """Make live clones of a sandbox: each goes on with its variables and files."""
    parent, given = call.session, await call.json(Timeout)
    if not 1 <= given.count <= MAX_FORKS:
        raise Problem(400, "invalid", f"count must be from 1 to {MAX_FORKS}")
    seconds = _seconds(given.timeout)
    made: list[dict[str, Any]] = []
    for _ in range(given.count):
        try:
            child = await call.service.sessions.fork(call.principal, parent, "")
        except Exception as exc:  # noqa: BLE001 - each clone has an outcome of its own
            problem = of_error(exc)
            made.append({"error": {"code": problem.status, "message": problem.detail}})
            continue
        child.max_seconds = min(seconds, call.service.settings.max_seconds)
        before, facts = call.service.e2b.facts(parent), call.service.e2b.facts(child)
        facts.template, facts.contexts = before.template, dict(before.contexts)
        made.append({"sandbox": _sandbox(call, child)})
    await call.service.announce()
    return as_json(made, 201)


async def metrics(call: Call) -> Response:
    """Return what a sandbox uses now: one sample, as no others are kept."""
    hosted, now = call.session, clock.now()
    await hosted.measure_disk()
    usage, policy = hosted.usage(), hosted.session.config.policy
    alive = max(now - hosted.created, 1e-3)
    sample = {
        "timestamp": iso_time(now),
        "timestampUnix": int(now),
        "cpuCount": os.cpu_count() or 1,
        "cpuUsedPct": round(100 * usage["cpu_seconds"] / alive, 2),
        "memUsed": usage["memory_bytes"] or 0,
        "memTotal": policy.memory_bytes or 0,
        "memCache": 0,
        "diskUsed": usage["disk_bytes"] or 0,
        "diskTotal": policy.disk_bytes or 0,
    }
    return as_json([sample])


async def unsupported(call: Call) -> Response:
    """Refuse what Atoll does not have: networks that change."""
    _ = call.session  # 404 if there is none
    text = "the network of a sandbox does not change: create another with what it needs"
    raise Problem(400, "unsupported", text)


def _check_supported(given: NewSandbox) -> None:
    for name in ("network", "mcp", "iam", "volumeMounts"):
        if getattr(given, name):
            raise Problem(400, "unsupported", f"{name} is not served: leave it out")
    if given.autoPause:
        raise Problem(400, "unsupported", "a sandbox ends at its timeout: it cannot pause then")


def _seconds(timeout: float | None) -> float:
    seconds = DEFAULT_SECONDS if timeout is None else timeout
    if not 0 <= seconds < float("inf"):
        raise Problem(400, "invalid", "timeout is a number of seconds from 0 on")
    return max(seconds, 0.001)


def _state(hosted: HostedSession) -> str:
    return "paused" if hosted.paused_as == "frozen" else "running"


def _sandbox(call: Call, hosted: HostedSession) -> dict[str, Any]:
    e2b = call.service.e2b
    return {
        "sandboxID": hosted.id,
        "templateID": e2b.facts(hosted).template,
        "clientID": "atoll",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": e2b.token(hosted.id, "envd"),
        "trafficAccessToken": e2b.token(hosted.id, "traffic"),
        "domain": None,
    }


def _detail(call: Call, hosted: HostedSession) -> dict[str, Any]:
    facts: SandboxFacts = call.service.e2b.facts(hosted)
    policy = hosted.session.config.policy
    return {
        "sandboxID": hosted.id,
        "templateID": facts.template,
        "clientID": "atoll",
        "envdVersion": ENVD_VERSION,
        "startedAt": iso_time(hosted.created),
        "endAt": iso_time(min(hosted.idle_until, hosted.expires)),
        "state": _state(hosted),
        "cpuCount": os.cpu_count() or 1,
        "memoryMB": (policy.memory_bytes or 0) // MEBIBYTE,
        "diskSizeMB": (policy.disk_bytes or 0) // MEBIBYTE,
        "metadata": hosted.metadata,
        "lifecycle": {"autoResume": facts.auto_resume, "onTimeout": "kill"},
    }

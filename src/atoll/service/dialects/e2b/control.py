"""Handlers of E2B's control plane: sandboxes are made, found, paused, forked and killed."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from msgspec import UNSET, Struct, UnsetType

from atoll.hosting.pool.tiers import TIERS
from atoll.service import clock
from atoll.service.api.sessions import MAX_FORKS, read_state
from atoll.service.dialects.e2b import snapshots, wire
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, of_error
from atoll.service.http.requests import Json
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest

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
    network: dict[str, Any] | None = None
    mcp: Any = None
    iam: Any = None
    volumeMounts: Any = None  # noqa: N815


class Timeout(Struct, kw_only=True):
    """A body that may say how many seconds a sandbox lives from now on."""

    timeout: float | None = None
    count: int = 1


class SandboxInfo(Struct, kw_only=True):
    """A sandbox, with the tokens that open it."""

    sandboxID: str  # noqa: N815
    templateID: str  # noqa: N815
    clientID: str = "atoll"  # noqa: N815
    envdVersion: str = ENVD_VERSION  # noqa: N815
    envdAccessToken: str  # noqa: N815
    trafficAccessToken: str  # noqa: N815
    domain: str | None = None


class Lifecycle(Struct):
    """What becomes of a sandbox at its timeout, and when it is used while it is paused."""

    autoResume: bool  # noqa: N815
    onTimeout: str = "kill"  # noqa: N815


class SandboxDetail(Struct, kw_only=True):
    """A sandbox as a list shows it."""

    sandboxID: str  # noqa: N815
    templateID: str  # noqa: N815
    clientID: str = "atoll"  # noqa: N815
    envdVersion: str = ENVD_VERSION  # noqa: N815
    startedAt: str  # noqa: N815
    endAt: str  # noqa: N815
    state: str
    cpuCount: int  # noqa: N815
    memoryMB: int  # noqa: N815
    diskSizeMB: int  # noqa: N815
    metadata: dict[str, str]
    lifecycle: Lifecycle


class ErrorInfo(Struct):
    """Why something was refused."""

    code: int
    message: str


class ForkedSandbox(Struct):
    """A clone, or why it is missing."""

    sandbox: SandboxInfo | UnsetType = UNSET
    error: ErrorInfo | UnsetType = UNSET


class TemplateAlias(Struct):
    """A template by a name of it."""

    templateID: str  # noqa: N815
    public: bool = True


class SandboxMetric(Struct, kw_only=True):
    """What a sandbox uses at a time."""

    timestamp: str
    timestampUnix: int  # noqa: N815
    cpuCount: int  # noqa: N815
    cpuUsedPct: float  # noqa: N815
    memUsed: int  # noqa: N815
    memTotal: int  # noqa: N815
    memCache: int = 0  # noqa: N815
    diskUsed: int  # noqa: N815
    diskTotal: int  # noqa: N815


async def create(call: ApiRequest) -> Json[SandboxInfo]:
    """Open a sandbox, which is a session."""
    given = await call.json(NewSandbox)
    _check_supported(given)
    service, principal = call.service, call.principal
    hosts = list(service.settings.session_hosts) if given.allow_internet_access else []
    names = {entry.partition("=")[0] for entry in service.settings.session_images}
    asked = bodies.NewSession(
        template=given.templateID if given.templateID in TIERS else None,
        image=given.templateID if given.templateID in names else None,
        env=given.envVars or {},
        network=hosts or None,
    )
    life = bodies.Life(
        max_seconds=_seconds(given.timeout), metadata=bodies.check_metadata(given.metadata)
    )

    snapshot = snapshots.find(call, given.templateID)

    async def work() -> SandboxInfo:
        state = None if snapshot is None else await read_state(call, snapshot.id)
        config, callbacks = await service.configure(principal, asked, state=state)
        hosted = await service.sessions.open(principal, config, callbacks, life)
        facts = service.e2b.facts(hosted)
        facts.template = given.templateID[: bodies.MAX_METADATA_TEXT]
        facts.auto_resume = bool((given.autoResume or {}).get("enabled"))
        facts.public_traffic = bool((given.network or {}).get("allowPublicTraffic", True))
        await service.announce()
        return _sandbox(call, hosted)

    return await call.once(work)


async def connect(call: ApiRequest) -> SandboxInfo:
    """Return a sandbox with its tokens; a paused sandbox runs again."""
    hosted, given = call.session, await call.json(Timeout)
    async with hosted.session:
        hosted.touch()
    facts, most = hosted.facts, call.service.settings.max_seconds
    until = clock.now() + _seconds(given.timeout) - facts.created
    facts.max_seconds = max(facts.max_seconds, min(until, most))
    return _sandbox(call, hosted)


async def list_all(call: ApiRequest) -> Json[list[SandboxDetail]]:
    """List the tenant's sandboxes, newest first; the query's filters choose among them."""
    states = [state for state in call.query("state").split(",") if state]
    # The SDK quotes names and texts once more than the query is quoted.
    pairs = parse_qsl(call.query("metadata"), keep_blank_values=True)
    wanted = {unquote(name): unquote(text) for name, text in pairs}
    template, after, facts = call.query("template"), _moment(call, "startedAfter"), call.service.e2b
    own = [
        hosted
        for hosted in call.service.sessions.of(call.principal)[::-1]
        if (not states or _state(hosted) in states)
        and (not template or facts.facts(hosted).template == template)
        and hosted.facts.created >= after
        and all(hosted.facts.metadata.get(name) == text for name, text in wanted.items())
    ]
    if call.query("order") == "asc":
        own.reverse()
    shown, headers = wire.page(call, own)
    return Json([_detail(call, hosted) for hosted in shown], headers=headers)


async def show(call: ApiRequest) -> SandboxDetail:
    """Describe a sandbox."""
    return _detail(call, call.session)


async def set_timeout(call: ApiRequest) -> None:
    """Let a sandbox end a number of seconds from now."""
    hosted, given = call.session, await call.json(Timeout)
    seconds = clock.now() - hosted.facts.created + _seconds(given.timeout)
    call.service.sessions.change(hosted, bodies.Life(max_seconds=seconds))


async def pause(call: ApiRequest) -> None:
    """Freeze a sandbox, with its memory; 409 if it is paused already."""
    hosted = call.session
    if hosted.session.frozen:
        raise Problem(409, "paused", "the sandbox is paused already")
    await hosted.session.pause()


async def fork(call: ApiRequest) -> list[ForkedSandbox]:
    """Make live clones of a sandbox: each goes on with its variables and files."""
    parent, given = call.session, await call.json(Timeout)
    if not 1 <= given.count <= MAX_FORKS:
        raise Problem(400, "invalid", f"count must be from 1 to {MAX_FORKS}")
    seconds = _seconds(given.timeout)
    made: list[ForkedSandbox] = []
    for _ in range(given.count):
        try:
            child = await call.service.sessions.fork(call.principal, parent, "")
        except Exception as exc:  # noqa: BLE001 - each clone has an outcome of its own
            problem = of_error(exc)
            made.append(ForkedSandbox(error=ErrorInfo(problem.status, problem.detail)))
            continue
        child.facts.max_seconds = min(seconds, call.service.settings.max_seconds)
        before, facts = call.service.e2b.facts(parent), call.service.e2b.facts(child)
        facts.template, facts.contexts = before.template, dict(before.contexts)
        facts.public_traffic = before.public_traffic
        made.append(ForkedSandbox(sandbox=_sandbox(call, child)))
    await call.service.announce()
    return made


async def alias(call: ApiRequest) -> TemplateAlias:
    """Say that a template exists: a sandbox can be made of every name."""
    return TemplateAlias(call.path["alias"])


async def metrics(call: ApiRequest) -> list[SandboxMetric]:
    """Return what a sandbox uses now: one sample, as no others are kept.

    A range that ends before the sandbox began, or begins later than now, has none.
    """
    hosted, now = call.session, clock.now()
    last = call.number("end", int(now))
    if last < int(hosted.facts.created) or call.number("start", 0) > now:
        return []
    await hosted.measure_disk()
    usage, policy = hosted.usage(), hosted.session.config.policy
    alive = max(now - hosted.facts.created, 1e-3)
    sample = SandboxMetric(
        timestamp=iso_time(now),
        timestampUnix=int(now),
        cpuCount=os.cpu_count() or 1,
        cpuUsedPct=round(100 * usage.cpu_seconds / alive, 2),
        memUsed=usage.memory_bytes or 0,
        memTotal=policy.memory_bytes or 0,
        diskUsed=usage.disk_bytes or 0,
        diskTotal=policy.disk_bytes or 0,
    )
    return [sample]


async def unsupported(call: ApiRequest) -> None:
    """Refuse what Atoll does not have: networks that change."""
    _ = call.session  # 404 if there is none
    text = "the network of a sandbox does not change: create another with what it needs"
    raise Problem(400, "unsupported", text)


def _moment(call: ApiRequest, name: str) -> float:
    """Return a time of the query in seconds since 1970; 0 if it is not there."""
    text = call.query(name).replace("Z", "+00:00").replace(" ", "+")
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except (ValueError, OverflowError):
        raise Problem(400, "invalid", f"{name} is not a time: {text[:60]!r}") from None


def _check_supported(given: NewSandbox) -> None:
    rules = {name for name, rule in (given.network or {}).items() if rule}
    if rules - {"allowPublicTraffic"}:
        text = "rules of `network` other than allow_public_traffic are not served: leave them out"
        raise Problem(400, "unsupported", text)
    for name in ("mcp", "iam", "volumeMounts"):
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


def _sandbox(call: ApiRequest, hosted: HostedSession) -> SandboxInfo:
    e2b, previews = call.service.e2b, call.service.previews
    return SandboxInfo(
        sandboxID=hosted.id,
        templateID=e2b.facts(hosted).template,
        envdAccessToken=e2b.token(hosted.id, "envd"),
        trafficAccessToken=e2b.token(hosted.id, "traffic"),
        domain=previews.site.place if previews.enabled else None,
    )


def _detail(call: ApiRequest, hosted: HostedSession) -> SandboxDetail:
    facts = call.service.e2b.facts(hosted)
    policy = hosted.session.config.policy
    return SandboxDetail(
        sandboxID=hosted.id,
        templateID=facts.template,
        startedAt=iso_time(hosted.facts.created),
        endAt=iso_time(min(hosted.idle_until, hosted.expires)),
        state=_state(hosted),
        cpuCount=os.cpu_count() or 1,
        memoryMB=(policy.memory_bytes or 0) // MEBIBYTE,
        diskSizeMB=(policy.disk_bytes or 0) // MEBIBYTE,
        metadata=hosted.facts.metadata,
        lifecycle=Lifecycle(facts.auto_resume),
    )

"""Bodies of requests, checked as they are read."""

from __future__ import annotations

import base64
import difflib
import functools
import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from atoll.config import SandboxConfig
from atoll.hosting.pool.tiers import TIERS
from atoll.log import SandboxLogger
from atoll.policy import ExecutionPolicy, Isolation
from atoll.sandbox.wire.options import HANDLERS, SERVICE_NAMES
from atoll.service.http.problems import Problem, decode, encode

if TYPE_CHECKING:
    from atoll.service.access.keys import Quota

T = TypeVar("T")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`(?: - at `\$\.(?P<at>\w+)`)?")
MAX_METADATA, MAX_METADATA_TEXT = 16, 256
MAX_TOOLS = 500
MAX_ENV = 256
MAX_CONFIG_BYTES = 4 << 20
"""What a session keeps of its configuration as long as it lives."""
MOST = {"max_state_bytes": 512 << 20, "max_concurrency": 256}
"""What a request may ask for of the service's own memory and threads."""
OUTPUTS = ("stdout_max_bytes", "stderr_max_bytes", "max_output_length")
"""What it may ask for within the setting `max_output_bytes`."""
USUAL_OUTPUT_BYTES = 4 << 20
"""Bytes kept of stdout, and of stderr, unless a request says otherwise."""
JUDGED = ("timeout_ms", "packages", "allow_source", "image")
"""Options that the key's quota and the operator's lists decide."""
_CALLBACKS = tuple(name.removeprefix("on_") for name in HANDLERS)


class Body(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A request's JSON."""


class FrozenBody(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, frozen=True):
    """A request's JSON that can be compared and hashed, as far as its fields can."""


class Policy(FrozenBody, kw_only=True, frozen=True):
    """Limits; omitted ones have Atoll's default, or the key's limit if that is lower."""

    memory_bytes: int | UnsetType | None = UNSET
    max_processes: int | UnsetType | None = UNSET
    cpu_seconds: float | UnsetType | None = UNSET
    disk_bytes: int | UnsetType | None = UNSET
    file_size_bytes: int | UnsetType | None = UNSET
    max_open_files: int | UnsetType = UNSET
    stdout_max_bytes: int | UnsetType = UNSET
    stderr_max_bytes: int | UnsetType = UNSET
    fuel_budget: int | UnsetType | None = UNSET
    folders: tuple[str, ...] | UnsetType = UNSET


class ContextOf(Body, kw_only=True):
    """The guest's variable `context`: a text, a value, or the id of an uploaded context."""

    text: str | UnsetType = UNSET
    value: Any = UNSET
    id: str | UnsetType = UNSET


class Network(Body, kw_only=True):
    """What the guest may reach, as NetworkPolicy has it: within what the operator allows."""

    allow: list[str]
    deny: list[str] | UnsetType = UNSET
    methods: list[str] | UnsetType | None = UNSET
    paths: list[str] | UnsetType | None = UNSET
    headers: dict[str, dict[str, str]] | UnsetType = UNSET
    inspect_tls: bool | UnsetType = UNSET
    max_bytes: int | UnsetType | None = UNSET
    max_requests: int | UnsetType | None = UNSET
    max_seconds: float | UnsetType | None = UNSET
    max_connections: int | UnsetType = UNSET


class Options(FrozenBody, kw_only=True, frozen=True):
    """What many sandboxes have in common: values that can be compared."""

    template: str | None = None
    allow_source: bool = False
    image: str | None = None
    writable_root: bool = False
    user: str | None = None
    workdir: str | None = None
    entrypoint: bool = False
    policy: Policy | None = None
    timeout_ms: float | None = None
    min_isolation: str | None = None
    max_output_length: int | None = None
    max_concurrency: int | None = None
    max_state_bytes: int | None = None
    explored_length: int | None = None
    lazy_queries: bool = False


class Sandbox(Options, kw_only=True, frozen=True):
    """What a sandbox is to be like: for sessions and one-shot runs."""

    packages: list[str] = []
    network: list[str] | Network | None = None
    context: ContextOf | None = None
    env: dict[str, str] = {}
    argv: list[str] | None = None
    tools: list[dict[str, Any]] = []
    callbacks: list[str] = []

    @property
    def is_plain(self) -> bool:
        """Whether it has Options alone."""
        return not (
            self.allow_source
            or self.image
            or self.packages
            or self.network
            or self.context
            or self.env
            or self.argv
            or self.tools
            or self.callbacks
        )

    def fields(self, quota: Quota, max_output_bytes: int) -> dict[str, Any]:
        """Return fields of a SandboxConfig; 403 if the key may not have one of them."""
        if len(self.env) > MAX_ENV or len(self.tools) > MAX_TOOLS:
            raise Problem(400, "invalid", f"at most {MAX_ENV} variables and {MAX_TOOLS} tools")
        given_bytes = len(encode([self.env, self.argv, self.tools]))
        if given_bytes > MAX_CONFIG_BYTES:
            text = f"env, argv and tools have at most {MAX_CONFIG_BYTES:,} bytes together"
            raise Problem(413, "too_large", f"{text}, not {given_bytes:,}")
        if self.template is not None and self.template not in TIERS:
            known = ", ".join(TIERS)
            raise Problem(400, "invalid", f"template is one of {known}, not {self.template!r:.60}")
        limits = msgspec.structs.asdict(self.policy) if self.policy is not None else {}
        given = {name: value for name, value in limits.items() if value is not UNSET}
        usual = min(USUAL_OUTPUT_BYTES, max_output_bytes)
        outputs = {"stdout_max_bytes": usual, "stderr_max_bytes": usual}
        policy = ExecutionPolicy(env=self.env, **{**outputs, **_within(given, quota)})
        for name, limit in (MOST | dict.fromkeys(OUTPUTS, max_output_bytes)).items():
            value = getattr(self, name, None) or getattr(policy, name, None)
            if value is not None and value > limit:
                raise Problem(403, "quota", f"{name} may be at most {limit:,}")
        sent = {name: getattr(self, given) for name, given in SERVICE_NAMES.items()}
        own = {k: v for k, v in sent.items() if v is not None and k not in JUDGED}
        return {
            **own,
            "backend": "native",
            "policy": policy,
            "timeout_ms": timeout_within(self.timeout_ms, quota),
            "min_isolation": Isolation.parse(self.min_isolation or Isolation.JAILED),
        }

    def asks(self) -> dict[str, Any]:
        """Return what ClientCallbacks takes: tools, and the functions that the caller has."""
        for name in self.callbacks:
            if name not in _CALLBACKS:
                known = ", ".join(_CALLBACKS)
                raise Problem(400, "invalid", f"no callback {name!r}: there are {known}")
        return {
            "tools": self.tools,
            "asks": ["on_output", *(f"on_{name}" for name in self.callbacks)],
        }


@functools.lru_cache(256)
def plain_config(given: Options, quota: Quota, max_output_bytes: int) -> SandboxConfig:
    """Return the configuration of a sandbox that is plain; checked once for all that are alike."""
    plain = msgspec.convert(given, Sandbox, from_attributes=True)
    return SandboxConfig(**plain.fields(quota, max_output_bytes), logger=SandboxLogger(None))


class Life(Body, kw_only=True):
    """The lifetime of a session, and its labels."""

    idle_seconds: float | None = None
    max_seconds: float | None = None
    metadata: dict[str, str] | None = None


class NewSession(Sandbox, kw_only=True, frozen=True):
    """POST /sessions."""

    state: str | None = None
    idle_seconds: float | None = None
    max_seconds: float | None = None
    metadata: dict[str, str] | None = None


class Cell(Body, kw_only=True):
    """POST /sessions/{id}/executions."""

    code: str
    timeout_ms: float | None = None
    detach: bool = False


class Command(Body, kw_only=True):
    """POST /sessions/{id}/shell: a command line, or a program with its arguments."""

    command: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    stdin: str | None = None
    """Base64."""
    merge_stderr: bool = True
    timeout_ms: float | None = None
    detach: bool = False


class FileGiven(Body, kw_only=True):
    """A file that is put beside the code of a one-shot run."""

    path: str
    content_b64: str


class Run(Sandbox, kw_only=True, frozen=True):
    """POST /run."""

    code: str
    stdin: str | None = None
    """What the code reads from standard input, as text."""
    stdin_b64: str | None = None
    """The same as base64, for bytes that are not UTF-8."""
    files: list[FileGiven] = []
    return_files: bool = False
    detach: bool = False

    def standard_input(self) -> bytes:
        """Return standard input given as base64; 400 if it is given twice, or is not base64."""
        if self.stdin is not None:
            raise Problem(400, "invalid", "give stdin or stdin_b64, not both")
        try:
            return base64.b64decode(self.stdin_b64 or "", validate=True)
        except ValueError:
            raise Problem(400, "invalid", "stdin_b64 is not base64") from None


class Code(Body, kw_only=True):
    """POST /sessions/{id}/validate."""

    code: str


class Restart(Body, kw_only=True):
    """POST /sessions/{id}/restart."""

    context: ContextOf | None = None


class Fork(Body, kw_only=True):
    """POST /sessions/{id}/fork."""

    count: int = 1
    name: str = ""


class Mark(Body, kw_only=True):
    """POST /sessions/{id}/checkpoints."""

    name: str = ""


class NewTools(Body, kw_only=True):
    """PUT /sessions/{id}/tools."""

    tools: list[dict[str, Any]]


class Commit(Body, kw_only=True):
    """POST /sessions/{id}/commit."""

    target: str
    push: bool = False
    compression: str = "gzip"


class Rollback(Body, kw_only=True):
    """POST /sessions/{id}/rollback."""

    mark: str


class Value(Body, kw_only=True):
    """PUT /sessions/{id}/variables/{name}: a value as docs/protocol.md writes it."""

    value: Any


class ToolResult(Body, kw_only=True):
    """One answer to a tool call: a value, or an error for the guest to raise."""

    id: str
    value: Any = None
    error: str | None = None
    raised: dict[str, Any] | None = None


class NewKey(Body, kw_only=True):
    """POST /keys."""

    name: str = ""
    tenant: str = "default"
    scopes: tuple[str, ...] = ("execute", "sessions", "files")
    expires_seconds: float | None = None
    quota: dict[str, Any] = {}


class ChangedKey(Body, kw_only=True):
    """PATCH /keys/{key}: what is not given stays as it is."""

    name: str | None = None
    quota: dict[str, Any] = {}
    """The limits to change; null takes one off where it may be taken off."""


def read(body: bytes, shape: type[T]) -> T:
    """Return a body in its shape; 400 says which field is wrong."""
    try:
        return decode(body or b"{}", shape)
    except (ValueError, RecursionError) as exc:
        words = f"invalid body: {exc}"[:500] + _nearest(str(exc), shape)
        raise Problem(400, "invalid", words) from None


def _nearest(fault: str, shape: type[Any]) -> str:
    """Return a question for the name that an unknown field may be meant as; empty if none is."""
    match = _UNKNOWN.search(fault)
    if match is None:
        return ""
    inner = {"policy": Policy, "context": ContextOf, "network": Network}.get(
        match["at"] or "", shape
    )
    close = difflib.get_close_matches(match["name"], inner.__struct_fields__, 1)
    return f": did you mean {close[0]!r}?" if close else ""


def _within(given: dict[str, Any], quota: Quota) -> dict[str, Any]:
    """Return limits of which none is above the key's; 403 if one was asked for that is.

    What was not asked for is the default, or the key's limit if that is lower. The folders of a
    sandbox are in memory, so a key may have no more of them than it may have memory.
    """
    bounds = {"memory_bytes": quota.memory_bytes, "disk_bytes": quota.most_disk_bytes}
    usual = ExecutionPolicy()
    for name, most in bounds.items():
        if most is None:
            continue
        asked = given.get(name, min(getattr(usual, name), most))
        if asked is None or asked > most:
            raise Problem(403, "quota", f"the key may have policy.{name} of at most {most:,}")
        given = {**given, name: asked}
    return given


def timeout_within(timeout_ms: float | None, quota: Quota) -> float:
    """Return the time limit, by default the key's; 403 if it is longer than the key may have."""
    if timeout_ms is not None and timeout_ms > quota.timeout_ms:
        raise Problem(403, "quota", f"the key may have timeout_ms of at most {quota.timeout_ms:g}")
    return quota.timeout_ms if timeout_ms is None else timeout_ms


def context_id(given: ContextOf | None) -> str | None:
    """Return the id of the uploaded context that a request names; None if it names none."""
    return given.id if given is not None and isinstance(given.id, str) else None


def check_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """Return the metadata; 400 if it is too much."""
    given = metadata or {}
    texts = [text for pair in given.items() for text in pair]
    if len(given) > MAX_METADATA or any(len(text) > MAX_METADATA_TEXT for text in texts):
        most = f"{MAX_METADATA} pairs of {MAX_METADATA_TEXT} characters"
        raise Problem(400, "invalid", f"metadata has at most {most}")
    return given


def files(given: list[FileGiven]) -> list[tuple[str, bytes]]:
    """Return path and bytes of files that came in a body."""
    decoded = []
    for file in given:
        try:
            decoded.append((file.path, base64.b64decode(file.content_b64, validate=True)))
        except ValueError:
            raise Problem(400, "invalid", f"content_b64 of {file.path!r} is not base64") from None
    return decoded

"""What a driver and a node say to each other, beyond the verbs of a session (`sandbox.verbs`)."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any

from atoll.errors import ConfigError, SandboxError
from atoll.images.reference import parse
from atoll.sandbox.verbs import Request, verb
from atoll.sandbox.wire import answers
from atoll.sandbox.wire.answers import Opened
from atoll.types import SandboxResult

REQUESTS: dict[str, type[Request[Any]]] = {}
"""The requests of a driver to a node that are not those of a client."""


@verb("open", answers.OPENED, table=REQUESTS)
class OpenSession(Request[Opened]):
    """Open a session, from the state that its log's entry names, or that is beside the message."""

    session: str
    config: dict[str, Any]
    durability: str = "none"
    context: dict[str, Any] | None = None
    """A small context, or the digest of a context that the node has."""
    entry: str | None = None
    state: bool = False


@verb("fork", answers.OPENED, table=REQUESTS)
class ForkSession(Request[Opened]):
    """Clone a session; with an entry, the clone has a log of its own."""

    session: str
    twin: str
    durability: str = "none"
    entry: str | None = None


@verb("leave", answers.AS_IT_IS, table=REQUESTS)
class LeaveNode(Request[None]):
    """End a session on this node, to go on elsewhere; `save`: return its state."""

    session: str
    save: bool = False


@verb("context", table=REQUESTS)
class ContextPart(Request[None]):
    """A part of a context, or its digest, which comes last."""

    upload: str
    offset: int = 0
    digest: str | None = None
    described: dict[str, Any] | None = None


@verb("run", answers.CELL, table=REQUESTS)
class RunOnce(Request[SandboxResult]):
    """Run code once, in a sandbox of its own, with `item` as its context."""

    code: str
    config: dict[str, Any]
    item: Any = None


MAX_IMAGES = 1000
"""Images that a node's facts name."""


def image_key(reference: str) -> str:
    """Return a short digest by which drivers and nodes name an image."""
    try:
        name = str(parse(reference))
    except ConfigError:  # the node says what is wrong with it
        name = reference
    return hashlib.sha256(name.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node's load and place. Drivers choose a node by them."""

    name: str = ""
    pid: int = 0
    isolation: str = ""
    sessions: int = 0
    capacity: int = 1
    executing: int = 0
    queued: int = 0
    executions: int = 0
    contexts: list[str]
    tiers: dict[str, dict[str, Any]]
    images: list[str] = field(default_factory=list)
    """Digests of the names of images that it has: see `image_key`."""
    draining: bool = False
    drivers: int = 0
    durable: int = 0
    save_lag: float = 0.0

    def params(self) -> dict[str, Any]:
        """Return the fields to send."""
        return asdict(self)

    @classmethod
    def read(cls, params: dict[str, Any]) -> NodeFacts:
        """Return the facts that a node sent; SandboxError if they have other fields."""
        try:
            return cls(**params)
        except TypeError as exc:
            raise SandboxError(f"a node sent facts of no known shape: {exc}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """What a driver needs to connect to a node; Ray hands it over."""

    port: int
    secret: bytes
    facts: NodeFacts

"""The handler that makes an image of a session, within what the operator allows.

SECURITY: names are shared by all keys, so a name that is taken cannot be committed again: a tenant
must not exchange an image that others run. One commit runs at a time, and one of each tenant waits,
as each takes a core and the disk; what the session may have on its disk is counted before.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec import Struct

from atoll.images import store
from atoll.images.reference import parse
from atoll.sandbox import verbs
from atoll.service.access import permissions
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import Json

if TYPE_CHECKING:
    from atoll.service.core.service import Service
    from atoll.service.http.requests import ApiRequest

UNLIMITED_DISK = 1 << 30
"""What a session without disk_bytes counts as."""


class CommittedSession(Struct):
    """An image that was made of a session."""

    image: str
    digest: str
    files: int
    layer_bytes: int
    left_out: dict[str, int]


class _Commits:
    """The commits of one service: which tenants have one, and whose turn it is."""

    def __init__(self) -> None:
        self.turn, self.tenants = asyncio.Lock(), set[str]()


_COMMITS: weakref.WeakKeyDictionary[Service, _Commits] = weakref.WeakKeyDictionary()


async def commit(call: ApiRequest) -> Json[CommittedSession]:
    """Make an image of a session: its own, and what it has changed as a layer on top."""
    hosted, given = call.session, await call.json(bodies.Commit)
    allowed = call.service.settings.commit_images
    permissions.check_commit(given.target, allowed, push=given.push)
    request = verbs.Commit.of(given.target, push=given.push, compression=given.compression)
    commits = _COMMITS.setdefault(call.service, _Commits())
    tenant = call.principal.tenant

    async def work() -> CommittedSession:
        if tenant in commits.tenants:
            raise Problem(429, "quota", "a commit of yours is running: wait for it")
        size = hosted.session.config.policy.disk_bytes or UNLIMITED_DISK
        commits.tenants.add(tenant)
        try:
            with call.service.disk.admit(call.principal, size, "a commit of disk_bytes"):
                async with commits.turn:
                    await asyncio.to_thread(_require_new, given.target)
                    made = await hosted.session.carry_out(request)
        finally:
            commits.tenants.discard(tenant)
        hosted.touch()
        return CommittedSession(**asdict(made))

    return await call.once(work)


def _require_new(target: str) -> None:
    if store.named(str(parse(target))) is not None:
        text = f"the image {target[:200]} exists, and names are shared: choose another tag"
        raise Problem(409, "image_exists", text)

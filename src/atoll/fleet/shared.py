"""Contexts of a driver's sessions: each is hashed once, and sent once to a node that needs it."""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import secrets
import weakref
from typing import TYPE_CHECKING, Any

from atoll.sandbox.wire import blobs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.fleet.peer import MessagePeer
    from atoll.fleet.router import DriverLink
    from atoll.sandbox.context import Context

PART_BYTES = 2 << 20
PARTS = 4
"""On their way to a node at one time."""


class SharedContext:
    """A context that a client passed as a memory file; freed with its last session."""

    def __init__(self, table: SharedContexts, inode: tuple[int, int], context: Context) -> None:
        self._table, self._inode, self._context = table, inode, context
        self._users = 0
        self._bytes = mmap.mmap(context.fd, context.size, prot=mmap.PROT_READ)
        self._digest = asyncio.ensure_future(asyncio.to_thread(self._read_digest))
        self._puts: weakref.WeakKeyDictionary[DriverLink, int] = weakref.WeakKeyDictionary()
        self._turns: weakref.WeakKeyDictionary[DriverLink, asyncio.Lock]
        self._turns = weakref.WeakKeyDictionary()

    def hold(self) -> SharedContext:
        """Count one more session that uses it."""
        self._users += 1
        return self

    def release(self) -> None:
        """Count one session less."""
        self._users -= 1
        if self._users == 0:
            self._table.forget(self._inode)
            self._digest.cancel()
            self._context.close()

    async def digest(self) -> str:
        """Return size and hash of content and form, by which nodes know it."""
        return await asyncio.shield(self._digest)

    async def digest_if_known(self, links: Iterable[DriverLink]) -> str | None:
        """Return the digest, unless it is not known yet and no node can have this context.

        A node is sent the context while it is hashed.
        """
        mark = f"{self._context.size}-"
        listed = (one for link in links for one in link.facts["contexts"])
        if self._digest.done() or any(one.startswith(mark) for one in listed):
            return await self.digest()
        return None

    async def put(self, link: DriverLink, missing: int | None = None) -> int:
        """Have a node hold it; return how often it was sent there.

        `missing`: the node did not have it any more after it was sent so often.
        """
        async with self._turns.setdefault(link, asyncio.Lock()):
            sent = self._puts.get(link, 0)
            here = sent > 0 or await self.digest_if_known([link]) in link.facts["contexts"]
            if sent == missing or (missing is None and not here):
                await self._send(link.peer)
                sent = self._puts[link] = sent + 1
            return sent

    async def _send(self, peer: MessagePeer) -> None:
        upload = {"upload": secrets.token_hex(8)}
        room = asyncio.Semaphore(PARTS)

        async def part(offset: int) -> None:
            async with room:
                data = memoryview(self._bytes)[offset : offset + PART_BYTES]
                await peer.call("context", {**upload, "offset": offset}, beside=[data])

        try:
            async with asyncio.TaskGroup() as tasks:
                for offset in range(0, self._context.size, PART_BYTES):
                    tasks.create_task(part(offset))
            about = {"digest": await self.digest(), "described": self._context.describe()}
            await peer.call("context", {**upload, **about})
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            peer.notify("context_over", upload)

    def _read_digest(self) -> str:
        hashed = hashlib.sha256(repr(sorted(self._context.describe().items())).encode())
        hashed.update(self._bytes)
        return f"{self._context.size}-{hashed.hexdigest()}"


class SharedContexts:
    """Those of all sessions of this driver. Clients that pass one memory file share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], SharedContext] = {}

    def adopt(self, described: dict[str, Any], fd: int) -> SharedContext:
        """Return the context in a memory file, held for one session."""
        context = blobs.adopt_context(described, fd)
        facts = os.fstat(context.fd)
        inode = (facts.st_dev, facts.st_ino)
        if inode in self._known:
            context.close()
        else:
            self._known[inode] = SharedContext(self, inode, context)
        return self._known[inode].hold()

    def forget(self, inode: tuple[int, int]) -> None:
        """Forget one that no session uses."""
        self._known.pop(inode, None)

"""Contexts of a driver's sessions: each is hashed once, and put into Ray's object store once."""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import pickle
from typing import TYPE_CHECKING, Any

from atoll.fleet import cluster
from atoll.wire import blobs

if TYPE_CHECKING:
    from atoll.context import Context


class SharedContext:
    """A context that a client passed as a memory file; freed with its last session."""

    def __init__(self, table: SharedContexts, inode: tuple[int, int], context: Context) -> None:
        self._table, self._inode, self._context = table, inode, context
        self._users = 0
        self._reference: Any = None
        self._putting = asyncio.Lock()
        self.digest = ""

    def hold(self) -> SharedContext:
        """Count one more session that uses it."""
        self._users += 1
        return self

    def release(self) -> None:
        """Count one session less."""
        self._users -= 1
        if self._users == 0:
            self._table.forget(self._inode)
            self._reference = None
            self._context.close()

    async def put(self, actor: Any) -> None:
        """Have a node hold it."""
        async with self._putting:
            if self._reference is None:
                self._reference = await asyncio.to_thread(self._to_ray)
        await actor.put_context.remote(self.digest, self._context.describe(), self._reference)

    def read_digest(self) -> str:
        """Return the hash of content and form."""
        hashed = hashlib.sha256(repr(sorted(self._context.describe().items())).encode())
        with self._mapped() as view:
            hashed.update(view)
        return hashed.hexdigest()

    def _to_ray(self) -> Any:
        with self._mapped() as view:
            return cluster.library().put(pickle.PickleBuffer(view))

    def _mapped(self) -> mmap.mmap:
        return mmap.mmap(self._context.fd, self._context.size, prot=mmap.PROT_READ)


class SharedContexts:
    """Those of all sessions of this driver. Clients that pass one memory file share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], SharedContext] = {}
        self._turn = asyncio.Lock()

    async def adopt(self, described: dict[str, Any], fd: int) -> SharedContext:
        """Return the context in a memory file, held for one session."""
        context = blobs.adopt_context(described, fd)
        facts = os.fstat(context.fd)
        inode = (facts.st_dev, facts.st_ino)
        async with self._turn:
            found = self._known.get(inode)
            if found is not None:
                context.close()
                return found.hold()
            made = SharedContext(self, inode, context)
            made.digest = await asyncio.to_thread(made.read_digest)
            self._known[inode] = made
            return made.hold()

    def forget(self, inode: tuple[int, int]) -> None:
        """Forget one that no session uses."""
        self._known.pop(inode, None)

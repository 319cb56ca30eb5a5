"""Contexts in a fleet: hashed once by the driver, sent once to a node, mapped by its guests."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import mmap
import os
import secrets
import weakref
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError
from atoll.rpc import blobs
from atoll.sandbox.context import Context

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from atoll.fleet.router import DriverLink
    from atoll.rpc.blobs import Buffer
    from atoll.rpc.connection import Peer

PART_BYTES = 2 << 20
PARTS = 4
"""On their way to a node at one time."""
MAX_UNUSED = 4
"""Contexts without a session that a node keeps for the next one."""
MISSING = "the node does not have this context"


class SharedContext:
    """A context that a driver's client passed as a memory file; freed with its last session."""

    def __init__(self, table: SharedContexts, inode: tuple[int, int], context: Context) -> None:
        self._table, self._inode, self._context = table, inode, context
        self._users = 0
        self._bytes = mmap.mmap(context.fd, context.size, prot=mmap.PROT_READ)
        self._digest = asyncio.ensure_future(asyncio.to_thread(self._read_digest))
        self._times_sent: weakref.WeakKeyDictionary[DriverLink, int] = weakref.WeakKeyDictionary()
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
        size = f"{self._context.size}-"
        if self._digest.done() or any(
            digest.startswith(size) for link in links for digest in link.facts.contexts
        ):
            return await self.digest()
        return None

    async def put(self, link: DriverLink, missing: int | None = None) -> int:
        """Send it to a node that does not have it; return how often it was sent there.

        `missing`: the node did not have it any more after it was sent so often.
        """
        async with self._turns.setdefault(link, asyncio.Lock()):
            sent = self._times_sent.get(link, 0)
            is_there = sent > 0 or await self.digest_if_known([link]) in link.facts.contexts
            if sent == missing or (missing is None and not is_there):
                await self._send(link.peer)
                sent = self._times_sent[link] = sent + 1
            return sent

    async def _send(self, peer: Peer) -> None:
        upload = {"upload": secrets.token_hex(8)}
        room = asyncio.Semaphore(PARTS)

        async def send_part(offset: int) -> None:
            async with room:
                data = memoryview(self._bytes)[offset : offset + PART_BYTES]
                await peer.call("context", {**upload, "offset": offset}, [data])

        try:
            async with asyncio.TaskGroup() as tasks:
                for offset in range(0, self._context.size, PART_BYTES):
                    tasks.create_task(send_part(offset))
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
    """The contexts of all sessions of a driver. Clients that pass one memory file share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], SharedContext] = {}

    def adopt(self, described: Mapping[str, Any], fd: int) -> SharedContext:
        """Return the context in a memory file, held for one session."""
        context = Context.adopt(described, fd)
        status = os.fstat(context.fd)
        inode = (status.st_dev, status.st_ino)
        if inode in self._known:
            context.close()
        else:
            self._known[inode] = SharedContext(self, inode, context)
        return self._known[inode].hold()

    def forget(self, inode: tuple[int, int]) -> None:
        """Forget a context that no session uses."""
        self._known.pop(inode, None)


class NodeContexts:
    """The contexts of a node by digest, the sessions that use each, and those that are arriving.

    Each is in one sealed memory file.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Context, set[str]]] = {}
        self._uploads: dict[tuple[Hashable, str], int] = {}
        """Memory files by their sender and its name for them."""

    @property
    def digests(self) -> list[str]:
        """The digests of the contexts that are here."""
        return list(self._known)

    def take_part(self, sender: Hashable, upload: str, offset: int, data: Buffer) -> None:
        """Write a part of a context into its memory file."""
        if (sender, upload) not in self._uploads:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            self._uploads[sender, upload] = os.memfd_create("atoll-context", flags)
        if os.pwrite(self._uploads[sender, upload], data, offset) != len(data):
            raise SandboxError("the node has no memory for this context")

    def finish(
        self, sender: Hashable, upload: str, digest: str, described: Mapping[str, Any]
    ) -> None:
        """Seal a context whose parts have all come, and keep it, unless it is here already."""
        fd = self._uploads.pop((sender, upload), None)
        if fd is None:
            raise SandboxError("no part of this context has come")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, blobs.SEALS | fcntl.F_SEAL_SEAL)
        context = Context.adopt(described, fd)
        if digest in self._known:
            context.close()
        else:
            self._known[digest] = context, set()
            self._trim()

    def drop_upload(self, sender: Hashable, upload: str | None = None) -> None:
        """Forget the parts of an upload that will not be finished; None: all of this sender."""
        for key in list(self._uploads):
            if key[0] == sender and upload in (None, key[1]):
                os.close(self._uploads.pop(key))

    def use(self, digest: str, session: str) -> Context:
        """Return the context for a session; SandboxError if it has not been put here."""
        if digest not in self._known:
            raise SandboxError(MISSING)
        context, users = self._known[digest] = self._known.pop(digest)  # the last used is the last
        users.add(session)
        return context

    def release(self, session: str) -> None:
        """Forget that a session uses any context."""
        for _, users in self._known.values():
            users.discard(session)
        self._trim()

    def _trim(self) -> None:
        unused = [digest for digest, (_, users) in self._known.items() if not users]
        for digest in unused[: max(0, len(unused) - MAX_UNUSED)]:
            context, _ = self._known.pop(digest)
            context.close()

"""The contexts of one node: each once, in a sealed memory file that all its guests map."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError
from atoll.sandbox.wire import blobs

if TYPE_CHECKING:
    from collections.abc import Hashable

    from atoll.fleet.frames import Buffer
    from atoll.sandbox.context import Context

MOST_UNUSED = 4
"""Contexts without a session that are kept for the next one."""
MISSING = "the node does not have this context"


class NodeContexts:
    """Contexts by their digest, the sessions that use each, and those that are on their way."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Context, set[str]]] = {}
        self._uploads: dict[tuple[Hashable, str], int] = {}
        """Memory files by their sender and its name for them."""

    @property
    def digests(self) -> list[str]:
        """The digests of those that are here."""
        return list(self._known)

    def take_part(self, sender: Hashable, upload: str, offset: int, data: Buffer) -> None:
        """Write a part of a context into its memory file."""
        if (sender, upload) not in self._uploads:
            made = os.memfd_create("atoll-context", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._uploads[sender, upload] = made
        if os.pwrite(self._uploads[sender, upload], data, offset) != len(data):
            raise SandboxError("the node has no memory for this context")

    def finish(self, sender: Hashable, upload: str, digest: str, described: dict[str, Any]) -> None:
        """Seal a context whose parts have all come, and keep it, unless it is here already."""
        fd = self._uploads.pop((sender, upload), None)
        if fd is None:
            raise SandboxError("no part of this context has come")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, blobs.SEALS | fcntl.F_SEAL_SEAL)
        context = blobs.adopt_context(described, fd)
        if digest in self._known:
            context.close()
        else:
            self._known[digest] = context, set()
            self._trim()

    def drop_upload(self, sender: Hashable, upload: str | None = None) -> None:
        """Forget what came of a context that will not be whole; of all, if the sender has gone."""
        for key in [one for one in self._uploads if one[0] == sender and upload in (None, one[1])]:
            os.close(self._uploads.pop(key))

    def use(self, digest: str, session: str) -> Context:
        """Return the context for a session; SandboxError if it has not been put here."""
        if digest not in self._known:
            raise SandboxError(MISSING)
        context, users = self._known[digest] = self._known.pop(digest)  # the last used is the last
        users.add(session)
        return context

    def release(self, session: str) -> None:
        """Forget that a session uses any."""
        for _, users in self._known.values():
            users.discard(session)
        self._trim()

    def _trim(self) -> None:
        unused = [digest for digest, (_, users) in self._known.items() if not users]
        for digest in unused[: max(0, len(unused) - MOST_UNUSED)]:
            context, _ = self._known.pop(digest)
            context.close()

"""The contexts of one node: each once, in a sealed memory file that all its guests map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll import context as contexts
from atoll.errors import SandboxError
from atoll.wire import blobs

if TYPE_CHECKING:
    from atoll.context import Context

MOST_UNUSED = 4
"""Contexts without a session that are kept for the next one."""
MISSING = "the node does not have this context"


class NodeContexts:
    """Contexts by their content hash, and the sessions that use each."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Context, set[str]]] = {}

    @property
    def digests(self) -> list[str]:
        """The content hashes of those that are here."""
        return list(self._known)

    def put(self, digest: str, described: dict[str, Any], data: Any) -> None:
        """Copy a context's bytes into a sealed memory file, unless it is here."""
        if digest not in self._known:
            fd = contexts.memory_file(memoryview(data).cast("B"))
            self._known[digest] = blobs.adopt_context(described, fd), set()
            self._trim()

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

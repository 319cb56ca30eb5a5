"""archive_open, archive_file and archive_search on the host: one archive is open at a time."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from atoll.agent.archive import open_archive
from atoll.agent.environment.tools import arguments
from atoll.concurrency import forks
from atoll.guest.agent.explorer import ELSEWHERE, REPEATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.archive import Archive
    from atoll.agent.environment.tools.context_tools import CutLists, Documents

MAX_TOLD = 1_000
"""Members that archive_open tells of."""
MAX_TEXT = 8 << 20
"""Characters of a member that cross to the guest."""
WAIT_SECONDS = 60.0
"""How long a call waits for those before it: of many whose cell has ended, most give up."""


class Archives:
    """Tools that run in threads, one after the other."""

    def __init__(self, documents: Documents, max_results: int, cut: CutLists) -> None:
        self._documents, self._most, self._cut = documents, max_results, cut
        self._archive: Archive | None = None
        self._lock, self._closed = forks.new_lock(), False

    def archive_open(self, path: str, data: bytes | None = None) -> dict[str, object]:
        """Open a document's archive, or the bytes of one; the members' names and sizes."""
        name = arguments.text(path, "path")
        if data is not None and not isinstance(data, bytes):
            raise ValueError("an archive is bytes, or the path of a file")
        with self._turn():
            archive = self._open(name, data)
            if archive is None:
                return {ELSEWHERE: True, REPEATED: True}
            self._close()
            self._archive = archive
            members = archive.members
            listing = [{"name": member.name, "size": member.size} for member in members[:MAX_TOLD]]
        self._cut.note("archive_open", "members", listing, len(members), counted=True)
        return {"members": listing, "total": len(members)}

    def archive_file(self, name: str) -> str:
        """The text of a member."""
        with self._turn():
            text = self._opened().text(arguments.text(name, "name"))
        if len(text) > MAX_TEXT:
            raise ValueError(
                f"{name} has {len(text):,} characters, and {MAX_TEXT:,} can be handed over: "
                "use archive_search"
            )
        return text

    def archive_search(self, query: str) -> dict[str, object]:
        """Lines with `query` in them."""
        with self._turn():
            match = self._opened().search(arguments.text(query, "query"), most=self._most)
        hits = [{"path": hit.member, "line": hit.line, "text": hit.text} for hit in match]
        self._cut.note("archive_search", "lines", hits, len(hits), counted=not match.truncated)
        return {"hits": hits, "total": len(hits), "counted": not match.truncated}

    def close(self) -> None:
        """Let go of the archive, also in the midst of a read; calls that wait find it closed."""
        self._closed = True
        if self._archive is not None:
            self._archive.close()
        with self._lock:  # a call that was opening one has ended
            if self._archive is not None:
                self._close()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            raise ValueError("other archive calls are still running: make one after the other")
        try:
            if self._closed:
                raise ValueError("the environment is closed")
            yield
        finally:
            self._lock.release()

    def _open(self, name: str, data: bytes | None) -> Archive | None:
        if data is not None:
            return open_archive(data, name)
        with self._documents.opened(name) as fd:
            if fd is None:
                return None
            with os.fdopen(os.dup(fd), "rb") as file:
                return open_archive(file, name)

    def _opened(self) -> Archive:
        if self._archive is None:
            raise ValueError("no archive is open: call archive_open(path) first")
        return self._archive

    def _close(self) -> None:
        if self._archive is not None:
            self._archive.close()
            self._archive = None

"""The interface of an open archive: its list of members, their bytes, and a search."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from atoll.agent.archive.process import Process
from atoll.agent.archive.source import as_descriptor
from atoll.agent.archive.types import ArchiveLimits, Hit, Hits, Member, Skipped, decode
from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.policy import check_positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.archive.confined import Reply

MAX_HITS = 10_000


def open_archive(
    source: bytes | BinaryIO, name: str = "archive", limits: ArchiveLimits | None = None
) -> Archive:
    """Open a zip, tar, 7z or pdf, recognised by its bytes; `name` is for messages.

    It blocks, up to `max_seconds`. ArchiveError says what is wrong with the file, ArchiveLimitError
    which limit it exceeds. An open file is read with pread: its offset does not change.
    """
    return Archive(source, name, limits or ArchiveLimits(), depth=1)


class Archive:
    """An open archive and the process that reads it; `close` ends both."""

    def __init__(
        self, source: bytes | BinaryIO, name: str, limits: ArchiveLimits, *, depth: int
    ) -> None:
        limits.check("max_depth", depth, "the depth of archives within each other")
        self.name, self._limits, self._depth = name[-_LONGEST_NAME:], limits, depth
        self._opening = forks.new_lock()
        self._process = Process(
            "atoll.agent.archive.server",
            memory=limits.max_memory_bytes,
            seconds=limits.max_seconds,
            most=limits.max_member_bytes,
        )
        self._fd: int | None = as_descriptor(source, limits)
        try:
            listed = self._open()
        except BaseException:
            self.close()
            raise
        self.kind = str(listed["kind"])
        """zip, tar, tar.gz and so on, 7z, pdf; gz and so on for a single packed file."""
        self.members = tuple(_member(*member) for member in listed["members"])
        self.skipped = _skipped(listed["skipped"])
        """Links, devices, encrypted entries, unsafe and duplicate names."""

    @property
    def confined(self) -> bool:
        """Whether the reading process is confined: no files, network or other processes."""
        return self._process.confined

    def read(self, name: str) -> bytes:
        """Return the bytes of a member."""
        return self._ask("read", name=name)[1]

    def text(self, name: str) -> str:
        """Return the text of a member: UTF-8, UTF-16 with a byte order mark, or else Latin-1."""
        return decode(self.read(name))[0]

    def search(
        self, query: str, most: int = 100, *, regex: bool = False, ignore_case: bool = False
    ) -> Hits:
        """Return the lines of text members that match the query."""
        check_positive("most", most)
        if most > MAX_HITS:
            raise ConfigError(f"most must be at most {MAX_HITS}, not {most}")
        options = {"regex": regex, "ignore_case": ignore_case}
        result = self._ask("search", query=query, most=most, **options)[0]
        hits = [_hit(*hit) for hit in result["hits"]]
        return Hits(hits, truncated=result["truncated"], unread=_skipped(result["unread"]))

    def open(self, name: str) -> Archive:
        """Open a member that is an archive itself, one level deeper."""
        depth = self._depth + 1
        self._limits.check("max_depth", depth, "the depth of archives within each other")
        return Archive(self.read(name), name, self._limits, depth=depth)

    def close(self) -> None:
        """Kill the reading process, also during a request."""
        self._process.close()
        with self._opening:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _ask(self, operation: str, **request: object) -> Reply:
        with self._opening:
            if not self._process.running:  # a member crashed it: read the others
                self._open()
            return self._process.ask(operation, **request)

    def _open(self) -> Mapping[str, Any]:
        fds = () if self._fd is None else (self._fd,)
        facts = {"fd": self._fd, "name": self.name, "limits": asdict(self._limits)}
        self._process.start(fds, **facts)
        return self._process.ask("open")[0]


_LONGEST_NAME = 1000


def _member(name: object, size: int | None, kind: object) -> Member:
    return Member(name=str(name), size=None if size is None else int(size), kind=str(kind))


def _hit(member: object, line: int, text: object) -> Hit:
    return Hit(member=str(member), line=int(line), text=str(text))


def _skipped(pairs: list[list[str]]) -> tuple[Skipped, ...]:
    return tuple(Skipped(name=str(name), reason=str(reason)) for name, reason in pairs)

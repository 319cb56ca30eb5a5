"""Parses files in confined processes; a file that makes one crash or hang is split into lines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from atoll.agent.archive.process import Process
from atoll.agent.retrieval.types import grammar_of, needs_parser
from atoll.agent.retrieval.units import chunk_plainly
from atoll.agent.retrieval.worker import MEMORY_BYTES, read_units
from atoll.config import cache_folder
from atoll.errors import ArchiveError, RetrievalError
from atoll.policy import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.agent.retrieval.types import Bounds, Unit

_WORKER = "atoll.agent.retrieval.worker"
_MAX_ANSWER = 256 * MIB
_MAX_PROCESSES = 4
_ADVICE = "set ATOLL_CACHE to a folder of yours"


class Parser:
    """The processes that parse, one for each grammar, started when needed; a context manager."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._processes: dict[str, Process] = {}
        self.failures = 0
        """Files that crashed a process or took too long."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        while self._processes:
            self._close(next(iter(self._processes)))

    def units(self, path: str, text: str) -> list[Unit]:
        """Return the units of a file; windows of lines for a file that breaks the parser."""
        most = self._bounds.units_per_file
        if not needs_parser(path):
            return chunk_plainly(path, text, most)
        grammar = grammar_of(path)
        try:
            payload = text.encode("utf-8", "surrogatepass")
            _, answer = self._process(grammar).ask("units", payload, path=path, most=most)
            return read_units(answer, path, most)
        except (ArchiveError, OSError, ValueError, RecursionError):
            self.failures += 1
            self._close(grammar)
            return chunk_plainly(path, text, most)

    def _process(self, grammar: str) -> Process:
        process = self._processes.get(grammar)
        if process is None:
            if len(self._processes) == _MAX_PROCESSES:
                self._close(next(iter(self._processes)))
            seconds = self._bounds.parse_seconds
            process = Process(_WORKER, memory=MEMORY_BYTES, seconds=seconds, most=_MAX_ANSWER)
            self._processes[grammar] = process
            process.start(grammar=grammar, folder=str(private_folder(cache_folder() / "grammars")))
        return process

    def _close(self, grammar: str) -> None:
        process = self._processes.pop(grammar, None)
        if process is not None:
            process.close()


def private_folder(folder: Path) -> Path:
    """Return the folder, created if needed, with mode 0700; RetrievalError if it is another's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as exc:
        raise RetrievalError(f"no folder for the index: {exc}: {_ADVICE}") from None
    if facts.st_uid != os.geteuid():
        raise RetrievalError(f"{folder} belongs to another user: {_ADVICE}")
    if facts.st_mode & 0o077:
        folder.chmod(0o700)
    return folder

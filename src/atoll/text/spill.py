"""Writes output that is too long for a model to a file, and gives the model a summary of it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import sys
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.policy import check_positive
from atoll.text.amounts import counted
from atoll.text.summary import RollingSummary, head_and_tail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from atoll.text.summary import Summarise


_CHUNK = 1 << 20


class SpillStore:
    """Texts by name in `above/session_id`; without `above`, in a folder that close() removes.

    Beyond `max_bytes` the oldest are removed: a model asks about the newest.
    """

    def __init__(self, above: Path | None, session_id: str, max_bytes: int) -> None:
        check_positive("max_bytes", max_bytes)
        self._above, self._session, self._max_bytes = above, session_id, max_bytes
        self._sizes: dict[str, int] = {}
        self._lock = forks.new_lock()
        self._folder: _Folder
        self._path = Path()
        self._finalizer: weakref.finalize[..., SpillStore] | None = None
        self._closed = False

    def keep(self, name: str, text: str) -> Path:
        """Write a text, or replace the one of that name; OSError leaves no partial file."""
        with self._lock:  # a thread whose caller was cancelled may still be writing
            if self._closed:
                raise OSError("the session is closed")
            if self._finalizer is None:
                self._open()
            self._forget(name)
            self._sizes[name] = self._write(name, text)
            while sum(self._sizes.values()) > self._max_bytes:
                self._forget(next(iter(self._sizes)))
            return self._path / name

    def paths(self) -> dict[str, Path]:
        """Return the paths of the texts by name, oldest first."""
        with self._lock:
            return {name: self._path / name for name in self._sizes}

    def clear(self) -> None:
        """Delete all texts."""
        with self._lock:
            for name in list(self._sizes):
                self._forget(name)

    def close(self) -> None:
        """Close the folder, and remove it if it was made for this session alone."""
        with self._lock:
            self._closed = True
            self._sizes.clear()
            if self._finalizer is not None:
                self._finalizer()

    def _open(self) -> None:
        private = self._above is None
        if self._above is None:
            self._path = Path(tempfile.mkdtemp(prefix="atoll-"))
        else:
            self._path = self._above / self._session
            self._above.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self._path.mkdir(mode=0o700)
        self._folder = _Folder(self._path)
        made = self._path if private else None
        self._finalizer = weakref.finalize(self, _let_go, self._folder, made)

    def _forget(self, name: str) -> None:
        self._sizes.pop(name, None)
        with suppress(FileNotFoundError):
            self._folder.remove(name)

    def _write(self, name: str, text: str) -> int:
        fd = self._folder.create(name)
        try:
            return sum(_write_all(fd, data) for data in _encoded(text, self._max_bytes))
        except OSError:
            self._folder.remove(name)
            raise
        finally:
            os.close(fd)


def _encoded(text: str, most: int) -> Iterator[bytes]:
    """Yield the text as UTF-8 in parts, so that it is not in memory twice; OSError over `most`."""
    size = 0
    for start in range(0, len(text), _CHUNK):
        # a lone surrogate has no UTF-8: it is written as \udxxx
        data = text[start : start + _CHUNK].encode("utf-8", "backslashreplace")
        size += len(data)
        if size > most:
            raise OSError(f"it has more than {most:,} bytes")
        yield data


if sys.platform != "win32":
    _NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    _FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

    class _Folder:
        """An open folder; OSError if it is a link or other users can reach it."""

        def __init__(self, path: Path) -> None:
            self._fd = os.open(path, _FOLDER)
            status = os.fstat(self._fd)
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                os.close(self._fd)
                text = f"the folder {path.name} belongs to another user, or others may enter it"
                raise OSError(text)

        def create(self, name: str) -> int:
            """Return a descriptor of a new file."""
            return os.open(name, _NEW_FILE, 0o600, dir_fd=self._fd)

        def remove(self, name: str) -> None:
            """Delete a file."""
            os.unlink(name, dir_fd=self._fd)

        def close(self) -> None:
            """Close the descriptor."""
            os.close(self._fd)

else:

    class _Folder:
        """A folder by its path: Windows opens none, and keeps temporary ones from other users."""

        def __init__(self, path: Path) -> None:
            self._path = path

        def create(self, name: str) -> int:
            """Return a descriptor of a new file."""
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_BINARY
            return os.open(self._path / name, flags, 0o600)

        def remove(self, name: str) -> None:
            """Delete a file."""
            (self._path / name).unlink()

        def close(self) -> None:
            """Do nothing: nothing is open."""


def _write_all(fd: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)


def _let_go(folder: _Folder, made: Path | None) -> None:
    folder.close()
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)


LEAST_PREVIEW = 400
"""Characters that a header, a footer and some text between them need."""
MAX_BYTES = 1 << 30
"""Bytes that the files of a session may have together; beyond it the oldest are deleted."""
SUMMARY_SECONDS = 30.0
LAST_TURN = 10**9
SHORT_FOLDER = "spill/"
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the model sees of a turn's output, and the file with all of it if that is longer."""

    text: str
    path: Path | None = None
    spilled: bool = False
    """Whether the text is a summary; if so and there is no path, the rest could not be kept."""


class Spill:
    """Keeps the output of one session's turns; over `cap` in `folder/session_id/turn_N.txt`.

    Without a folder the files are in a private one, which `close` removes.
    """

    def __init__(
        self,
        folder: Path | None,
        session_id: str,
        *,
        cap: int = 8192,
        preview: int = 1500,
        summarise: Summarise | None = None,
        summary_seconds: float = SUMMARY_SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check_positive("cap", cap)
        check_positive("summary_seconds", summary_seconds)
        if not _SESSION.match(session_id):
            raise ConfigError(
                f"a session id must be 1 to 128 letters, digits and ._- and begin with no dot or "
                f"dash, not {session_id[:200]!r}"
            )
        if preview < LEAST_PREVIEW:
            raise ConfigError(f"preview must be at least {LEAST_PREVIEW} characters, not {preview}")
        self._cap, self._preview = cap, preview
        self._kept = SpillStore(folder, session_id, max_bytes)
        self._rolling = RollingSummary(summarise, summary_seconds) if summarise else None
        self._one_at_a_time = asyncio.Lock()

    async def observe(self, turn: int, text: str, *, lost: int = 0) -> Observed:
        """Return the text itself, or if it is longer than the cap, a summary of it.

        `lost` are bytes of the output that are not in `text`: the header says so.
        """
        if not isinstance(turn, int) or not 0 <= turn <= LAST_TURN:
            raise ConfigError(f"a turn is a number from 0 to {LAST_TURN:,}, not {turn!r:.50}")
        if len(text) <= self._cap:
            return Observed(text=text)
        async with self._one_at_a_time:
            name, path, reason = f"turn_{turn}.txt", None, ""
            try:
                path = await asyncio.to_thread(self._kept.keep, name, text)
            except OSError as exc:
                reason = exc.strerror or str(exc)
            notes = await self._rolling.add(text) if self._rolling else None
        short = SHORT_FOLDER + name
        header = _header(turn, text, short, reason, lost)
        footer = _footer(short) if path else ""
        body = self._body(text, notes, self._preview - len(header) - len(footer) - 2)
        shown = "\n".join(part for part in (header, body, footer) if part)
        return Observed(text=shown, path=path, spilled=True)

    def files(self) -> dict[str, Path]:
        """Return the paths of the files, by the short names that the model sees."""
        return {SHORT_FOLDER + name: path for name, path in self._kept.paths().items()}

    def clear(self) -> None:
        """Delete the files and forget the notes: the session begins again."""
        self._kept.clear()
        if self._rolling is not None:
            self._rolling.forget()

    def close(self) -> None:
        """Close the folder, and remove it if it was private. Calling it twice is harmless."""
        self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @staticmethod
    def _body(text: str, notes: str | None, room: int) -> str:
        title = "Notes on the output so far, by a model:\n"
        return (title + notes)[:room] if notes else head_and_tail(text, room)


def _header(turn: int, text: str, short: str, reason: str, lost: int) -> str:
    lines = text.removesuffix("\n").count("\n") + 1
    where = f"all of it is in {short}"
    if reason:
        where = f"the rest was not kept: {reason[:120]}"
    elif lost:
        where = f"{short} has this much; {lost:,} bytes in the middle were too many and are lost"
    length = f"{len(text):,} characters in {counted(lines, 'lines')}"
    return f"[output of turn {turn}: {length}; {where}]"


def _footer(short: str) -> str:
    return f'[for more: peek("{short}", 2000) or grep("{short}", "pattern")]'

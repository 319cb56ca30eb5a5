"""What a question is asked over: a text, data, files, or folders put together as one context.

SECURITY: another user may control a folder. Links in it are not followed, only regular files are
read, and no name in it can break out of its line.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.options import context_of, index_of
from atoll.agent.retrieval.sources import FolderSource
from atoll.agent.trajectory.terminal_text import line
from atoll.errors import ConfigError
from atoll.files.folder import open_beneath
from atoll.sandbox.context import Context
from atoll.text.quoting import DIGITS, tag_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.search.index import ContextIndex

LARGEST = 1 << 30
"""Bytes of all files together, with the lines that name them."""
HEADER = "===== FILE {}: {} ====="
"""The tag is in no file, so that no text in a file looks like the beginning of another."""
HEAD = 1 << 13
"""Bytes in which a file that is not text has a NUL."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class ContextSource:
    """A context, and the folder whose files can be looked into by name."""

    context: Any
    documents: Path | None = None
    files: int = 0
    """How many the context was put together from; 0: it is one text, or data."""
    skipped: int = 0
    """Files of a folder that are not text, or cannot be read."""
    tag: str = ""
    """A text that each line above a file contains, and no file."""

    index: ContextIndex | None = field(init=False)
    """The index over the text, or over the readable form of data."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", index_of(self.context))

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if self.context is None:
            return "none"
        if self.files:
            header = HEADER.format(self.tag, "path")
            return f"the text of {self.files:,} files, each below a line `{header}`,"
        is_text = isinstance(self.context, Context) and not self.context.describe()["json"]
        return "a text" if is_text else "data, which peek and grep show as JSON,"


def read_context(given: Any) -> ContextSource:
    """Return the context of what was given: of paths, the files' texts together."""
    if isinstance(given, ContextSource):
        return given
    many = given if isinstance(given, list | tuple) else [given]
    paths = [path.expanduser() for path in many if isinstance(path, Path)]
    if not paths or len(paths) < len(many):
        return ContextSource(context=context_of(given))
    if len(paths) == 1 and not paths[0].is_dir():
        return ContextSource(context=_alone(paths[0]))
    return _together(paths)


class _Room:
    """The bytes that are left of the limit; every text takes its part."""

    def __init__(self) -> None:
        self.left = LARGEST

    def take(self, name: Path | str, size: int) -> None:
        self.left -= size
        if self.left < 0:
            limit = f"{LARGEST:,} bytes"
            raise ConfigError(f"{name}: a context may have {limit} of text: give a part of it")


def _alone(path: Path) -> Context:
    """Return a file as a context; an ASCII file is shared with the sandbox without decoding."""
    room = _Room()
    try:
        if path.is_file():
            room.take(path, path.stat().st_size)
            return Context.from_file(path)
    except OSError as exc:
        raise _unreadable(path, exc) from None
    except UnicodeDecodeError as exc:
        raise _no_text(path, exc) from None
    return Context.from_text(_named(path, room))


def _together(paths: Sequence[Path]) -> ContextSource:
    folders = [path for path in paths if path.is_dir()]
    room, result, skipped = _Room(), list[tuple[str, str]](), 0
    for path in paths:
        for name, text in _texts(path, room, alone=len(folders) == 1):
            if text is None:
                skipped += 1
                continue
            room.take(name, len(HEADER) + DIGITS + len(name) + 2)
            result.append((line(name), text.removesuffix("\n")))
    if not result:
        raise ConfigError(f"there is no text in {paths[0]}: {skipped:,} files were skipped")
    names = "\n".join(name for name, _ in result)
    tag = tag_of(names, *(text for _, text in result))
    parts = [f"{HEADER.format(tag, name)}\n{text}\n" for name, text in result]
    context = Context.from_text("".join(parts))
    starts = accumulate(map(len, parts), initial=0)
    context.files = tuple(zip(starts, (name for name, _ in result), strict=False))
    return ContextSource(
        context=context,
        documents=folders[0] if len(folders) == 1 else None,
        files=len(result),
        skipped=skipped,
        tag=tag,
    )


def _texts(path: Path, room: _Room, *, alone: bool) -> Iterator[tuple[str, str | None]]:
    """Yield names and texts; None for a file that is not text. A single folder is not named."""
    if not path.is_dir():
        yield str(path), _named(path, room)
        return
    prefix = "" if alone else f"{path}/"
    root = _opened(path)
    source = FolderSource(f"/proc/self/fd/{root}")
    try:
        for entry in source.entries():
            yield prefix + entry.path, _found(root, entry.path, room)
    finally:
        source.close()
        os.close(root)


def _opened(folder: Path) -> int:
    try:
        return os.open(folder, _FOLDER)
    except OSError as exc:
        raise _unreadable(folder, exc) from None


def _found(root: int, name: str, room: _Room) -> str | None:
    """Return a file of a folder; None if it is not text, or cannot be read."""
    try:
        with open(open_beneath(root, name, _FILE), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(HEAD)
            if b"\0" in data:
                return None
            data += file.read(room.left + 1)
            text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    room.take(name, len(data))
    return text


def _named(path: Path, room: _Room) -> str:
    """Return a file that was asked for by its name, or a pipe: it must be text."""
    try:
        with path.open("rb") as file:
            data = file.read(room.left + 1)
        room.take(path, len(data))
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise _no_text(path, exc) from None
    except OSError as exc:
        raise _unreadable(path, exc) from None


def _no_text(path: Path, exc: UnicodeDecodeError) -> ConfigError:
    return ConfigError(f"{path} is not UTF-8 text (byte {exc.start:,})")


def _unreadable(path: Path, exc: OSError) -> ConfigError:
    return ConfigError(f"cannot read {path}: {exc.strerror or exc}")

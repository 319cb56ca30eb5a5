"""Handlers of a sandbox's files: whole files over HTTP, and envd's Filesystem over RPC."""

from __future__ import annotations

import os
import posixpath
import re
import stat
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from atoll.files.types import FileError
from atoll.guest.shared.workspace import code_of
from atoll.jail.supervisor.spec import SHOWN_FOLDERS, WORK_ALIAS, WORK_FOLDER
from atoll.service.api.file_operations import STATUSES
from atoll.service.api.files import FilePart
from atoll.service.dialects.e2b import wire
from atoll.service.http.multipart import Form
from atoll.service.http.problems import Problem
from atoll.service.ids import new_id
from atoll.service.storage.spool import Spool
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.files.live import Entry, FolderWatch
    from atoll.files.watch import Change
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.streams import Event


HOME = WORK_FOLDER
THEIR_HOME = "/home/user"
"""E2B's home folder: another name of ours in requests, but not for code in the sandbox."""
LONGEST_PATH = 4096
_REACHED = (*SHOWN_FOLDERS, WORK_ALIAS)


def absolute(path: str) -> str:
    """Return the absolute path in the sandbox; 400 for an invalid path."""
    if len(path) > LONGEST_PATH:
        raise Problem(400, "invalid", f"a path has at most {LONGEST_PATH:,} characters")
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    whole = posixpath.normpath(posixpath.join(HOME, path))
    if whole == THEIR_HOME or whole.startswith(f"{THEIR_HOME}/"):
        whole = HOME + whole[len(THEIR_HOME) :]
    return whole


def located(path: str) -> str:
    """Return the absolute path in the sandbox; 400 if it cannot be reached from outside."""
    whole = absolute(path)
    if "\0" in whole or not any(f"{whole}/".startswith(f"{root}/") for root in _REACHED):
        known = ", ".join((THEIR_HOME, *_REACHED))
        raise Problem(400, "invalid", f"{path!r:.200} is not in a folder of the sandbox: {known}")
    return whole


MAX_FILES = 1_000
MAX_DEPTH = 64
MAX_WATCHERS = 16
_DRAFT = re.compile(r"(?:^|/)\.[0-9a-f]{16}\.(draft|update)\Z")
"""A file that is being written from outside, before it gets its name: a new one, or another's."""
_NAMED = {"draft": ("CREATE", "WRITE"), "update": ("WRITE",)}
"""Events of a file whose draft got its name."""
_EVENTS = {
    "created": ("CREATE",),
    "moved_to": ("CREATE",),
    "written": ("WRITE",),
    "deleted": ("REMOVE",),
    "moved_from": ("RENAME",),
    "attributes": ("CHMOD",),
}
_KINDS = {stat.S_IFDIR: "DIRECTORY", stat.S_IFLNK: "SYMLINK", stat.S_IFREG: "FILE"}


class PathMessage(Struct):
    """A message that names a file or folder."""

    path: str = ""


class ListMessage(PathMessage):
    """Filesystem/ListDir."""

    depth: int | None = None


class MoveMessage(Struct):
    """Filesystem/Move."""

    source: str = ""
    destination: str = ""


class WatchMessage(PathMessage):
    """Filesystem/WatchDir and CreateWatcher."""

    recursive: bool | None = None


class WatcherMessage(Struct):
    """A message that names a watcher, and the answer that makes one."""

    watcherId: str = ""  # noqa: N815 - as E2B writes it


class WrittenFile(Struct):
    """A file that was written."""

    name: str
    path: str
    type: Literal["file"] = "file"


class EntryInfo(Struct, kw_only=True):
    """A file or folder."""

    name: str
    type: str
    path: str
    size: str
    mode: int
    permissions: str
    owner: str = "user"
    group: str = "user"
    modifiedTime: str  # noqa: N815
    isSymlink: bool = False  # noqa: N815
    """Of a link: `type` is then that of the file or folder it leads to."""
    symlinkTarget: str | UnsetType = UNSET  # noqa: N815


class DescribedEntry(Struct):
    """A file or folder that was asked for."""

    entry: EntryInfo


class ListedEntries(Struct):
    """The contents of a folder."""

    entries: list[EntryInfo]


class FileEvent(Struct):
    """A change of a file."""

    name: str
    type: str


class FileEvents(Struct):
    """The changes of a folder since the last time."""

    events: list[FileEvent]


async def read(call: ApiRequest) -> FilePart:
    """Return a file's bytes."""
    path, hosted = located(call.query("path")), call.service.e2b.sandbox(call)
    try:
        file = await hosted.files.open_file(path)
    except (OSError, ValueError) as exc:
        raise _refusal(path, exc) from None
    headers = {"content-length": str(file.size)}
    return FilePart(file, 0, file.size, 200, headers, body=True)


async def write(call: ApiRequest) -> list[WrittenFile]:
    """Write the files of a form, or the body as one file; parent folders are made."""
    hosted = call.service.e2b.sandbox(call)
    body = call.pieces("max_upload_bytes", slow=True)
    kind = call.request.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        paths = await _of_form(call, hosted, kind, body)
    else:
        paths = [located(call.query("path"))]
        await _store(call, hosted, paths[0], body)
    return [WrittenFile(posixpath.basename(path), path) for path in paths]


async def info(call: ApiRequest) -> DescribedEntry:
    """Describe a file or folder."""
    given, hosted = await call.json(PathMessage), call.service.e2b.sandbox(call)
    return await _described(hosted, located(given.path))


async def list_folder(call: ApiRequest) -> ListedEntries:
    """List a folder, and those in it down to a depth."""
    given, hosted = await call.json(ListMessage), call.service.e2b.sandbox(call)
    path, depth = located(given.path), given.depth or 1
    if not 1 <= depth <= MAX_DEPTH:
        raise Problem(400, "invalid", f"depth must be from 1 to {MAX_DEPTH}")
    return ListedEntries([_entry(entry) for entry in await _inspect(hosted, path, depth)])


async def make_folder(call: ApiRequest) -> DescribedEntry:
    """Make a folder and its parents; 409 if it is there."""
    given, hosted = await call.json(PathMessage), call.service.e2b.sandbox(call)
    path = located(given.path)
    try:
        (entry,) = await _inspect(hosted, path)
    except Problem as exc:
        if exc.status != 404:
            raise
    else:
        is_folder = stat.S_ISDIR(entry.mode)
        words = "it is there already" if is_folder else "it is a file"
        raise Problem(409 if is_folder else 400, "file", f"{path!r}: {words}")
    await _changed(hosted.files.mkdir(path), path)
    return await _described(hosted, path)


async def move(call: ApiRequest) -> DescribedEntry:
    """Rename a file or folder; a file that has the new name is replaced."""
    given, hosted = await call.json(MoveMessage), call.service.e2b.sandbox(call)
    source, target = located(given.source), located(given.destination)
    await _changed(hosted.files.move(source, target, overwrite=True), source)
    return await _described(hosted, target)


async def remove(call: ApiRequest) -> wire.Empty:
    """Delete a file, or a folder with all it holds; a missing file is not an error."""
    given, hosted = await call.json(PathMessage), call.service.e2b.sandbox(call)
    path = located(given.path)
    try:
        await _changed(hosted.files.delete(path, recursive=True), path)
    except Problem as exc:
        if exc.status != 404:
            raise
    return wire.Empty()


async def create_watcher(call: ApiRequest) -> WatcherMessage:
    """Begin to collect the changes of a folder."""
    given, hosted = await call.json(WatchMessage), call.service.e2b.sandbox(call)
    watchers = call.service.e2b.facts(hosted).watchers
    if len(watchers) >= MAX_WATCHERS:
        raise Problem(429, "rate_limited", f"a sandbox has at most {MAX_WATCHERS} watchers")
    ident = new_id("wat")
    watchers[ident] = await _watch(hosted, given)
    call.service.e2b.watched.add(hosted)
    return WatcherMessage(ident)


async def watcher_events(call: ApiRequest) -> FileEvents:
    """Return the changes since the last time."""
    watchers, ident = await _watcher(call)
    return FileEvents(_events(await anext(watchers[ident].changes(0.01))))


async def remove_watcher(call: ApiRequest) -> wire.Empty:
    """Stop collecting changes."""
    watchers, ident = await _watcher(call)
    watchers.pop(ident).close()
    return wire.Empty()


async def watch(call: ApiRequest) -> wire.FrameResponse:
    """Stream the changes of a folder."""
    hosted = call.service.e2b.sandbox(call)
    given = await wire.message(call, WatchMessage)
    return wire.FrameResponse(call, _stream(call, hosted, await _watch(hosted, given)), hosted.id)


async def _stream(
    call: ApiRequest, hosted: HostedSession, folder: FolderWatch
) -> AsyncIterator[list[Event]]:
    with folder:
        yield [(0, "start", wire.frame({"start": {}}))]
        async for changes in folder.changes(call.service.settings.keepalive_seconds):
            if hosted.over or call.service.stopping:
                break
            frames = [wire.frame({"filesystem": change}) for change in _events(changes)]
            yield [(0, "", frame) for frame in frames or [wire.frame({"keepalive": {}})]]
        yield [(0, "end", wire.last_frame())]


async def _watch(hosted: HostedSession, given: WatchMessage) -> FolderWatch:
    path = located(given.path)
    try:
        return await hosted.files.watch(path, recursive=given.recursive is True)
    except (OSError, ValueError) as exc:
        raise _refusal(path, exc) from None


async def _watcher(call: ApiRequest) -> tuple[dict[str, FolderWatch], str]:
    """Return the watchers of a sandbox, and the id of the watcher that a message names; 404."""
    given, hosted = await call.json(WatcherMessage), call.service.e2b.sandbox(call)
    watchers = call.service.e2b.facts(hosted).watchers
    if given.watcherId not in watchers:
        raise Problem(404, "not_found", "there is no such watcher")
    return watchers, given.watcherId


def _events(changes: list[Change]) -> list[FileEvent]:
    found: list[FileEvent] = []
    draft = ""
    for change in changes:
        if match := _DRAFT.search(change.path):
            draft = match[1] if change.kind == "moved_from" else ""
            continue
        renamed = draft and change.kind == "moved_to"
        kinds = _NAMED[draft] if renamed else _EVENTS.get(change.kind, ())
        found += [FileEvent(_shown(change.path), f"EVENT_TYPE_{kind}") for kind in kinds]
        draft = ""
    return found


async def _store(
    call: ApiRequest, hosted: HostedSession, path: str, pieces: AsyncIterator[bytes]
) -> None:
    """Write a file of a sandbox once all of its bytes have come."""
    with Spool(call) as spool:
        answer = await (await spool.fill(pieces)).store(hosted.files, path)
    if "error" in answer:
        error = FileError(answer["error"])
        status = STATUSES.get(error, 400)
        raise Problem(status, "file", f"{path!r}: {answer.get('reason') or error}")


async def _of_form(
    call: ApiRequest, hosted: HostedSession, kind: str, body: AsyncIterator[bytes]
) -> list[str]:
    """Write the files of a form as they come; return their paths."""
    paths: list[str] = []
    async for part in Form(kind, body).parts():
        if part.filename is None:
            continue
        if len(paths) >= MAX_FILES:
            raise Problem(413, "too_large", f"at most {MAX_FILES} files at a time")
        path = located(call.query("path") or part.filename)
        await _store(call, hosted, path, part.pieces())
        paths.append(path)
    return paths


async def _described(hosted: HostedSession, path: str) -> DescribedEntry:
    (entry,) = await _inspect(hosted, path)
    return DescribedEntry(_entry(entry))


async def _changed(work: Any, path: str) -> None:
    try:
        await work
    except (OSError, ValueError) as exc:
        raise _refusal(path, exc) from None


async def _inspect(hosted: HostedSession, path: str, depth: int = 0) -> list[Entry]:
    try:
        return await hosted.files.inspect(path, depth)
    except (OSError, ValueError) as exc:
        raise _refusal(path, exc) from None


def _entry(entry: Entry) -> EntryInfo:
    kind = stat.S_IFMT(entry.target_mode or entry.mode)
    return EntryInfo(
        name=posixpath.basename(_shown(entry.path)),
        type=f"FILE_TYPE_{_KINDS.get(kind, 'UNSPECIFIED')}",
        path=_shown(entry.path),
        size=str(entry.size),
        mode=stat.S_IMODE(entry.mode),
        permissions=stat.filemode(entry.mode),
        modifiedTime=iso_time(entry.modified),
        isSymlink=stat.S_ISLNK(entry.mode),
        symlinkTarget=_shown(entry.target) or UNSET,
    )


def _shown(path: str) -> str:
    """Return a path as text: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def _refusal(path: str, fault: OSError | ValueError) -> Problem:
    if isinstance(fault, OSError) and fault.errno is None:  # of a file operation, by its kind
        kinds = ((FileNotFoundError, 404), (PermissionError, 403), (FileExistsError, 409))
        status = next((code for kind, code in kinds if isinstance(fault, kind)), 400)
        return Problem(status, "file", str(fault))
    error = FileError(code_of(fault))
    return Problem(STATUSES.get(error, 400), "file", f"{path!r}: {error}")

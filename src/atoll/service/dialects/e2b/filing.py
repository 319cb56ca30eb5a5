"""Handlers of a sandbox's files: whole files over HTTP, and envd's Filesystem over RPC."""

from __future__ import annotations

import posixpath
import re
import stat
from typing import TYPE_CHECKING, Any

from atoll.files.types import FileError
from atoll.guest.shared.workspace import code_of
from atoll.service.api.files import FilePart
from atoll.service.dialects.e2b import wire
from atoll.service.dialects.e2b.paths import located
from atoll.service.http.multipart import Form
from atoll.service.http.problems import Problem
from atoll.service.http.requests import as_json
from atoll.service.ids import new_id
from atoll.service.storage.spool import Spool
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from atoll.files.live import Entry, FolderWatch
    from atoll.files.watch import Change
    from atoll.service.core.executions import Event
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import Call

MOST_FILES = 1_000
MOST_DEPTH = 64
MOST_WATCHERS = 16
_STATUSES = {
    FileError.FILE_NOT_FOUND: 404, FileError.PERMISSION_DENIED: 403, FileError.TOO_LARGE: 413,
    FileError.FILE_EXISTS: 409, FileError.NO_SPACE: 507,
}  # fmt: skip
_DRAFT = re.compile(r"(^|/)\.[0-9a-f]{16}\.draft\Z")
"""A file that is being written from outside, before it gets its name."""
_EVENTS = {
    "created": "CREATE", "moved_to": "CREATE", "written": "WRITE", "deleted": "REMOVE",
    "moved_from": "RENAME", "attributes": "CHMOD",
}  # fmt: skip


async def read(call: Call) -> Response:
    """Return a file's bytes."""
    path, hosted = located(call.query("path")), call.service.e2b.sandbox(call)
    try:
        file = await hosted.files.open_file(path)
    except (OSError, ValueError) as exc:
        raise _refusal(path, exc) from None
    headers = {"content-length": str(file.size)}
    return FilePart(file, 0, file.size, 200, headers, body=True)


async def write(call: Call) -> Response:
    """Write the files of a form, or the body as one file; parent folders are made."""
    hosted = call.service.e2b.sandbox(call)
    body = call.pieces("max_upload_bytes", slow=True)
    kind = call.request.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        paths = await _of_form(call, hosted, kind, body)
    else:
        paths = [located(call.query("path"))]
        await _store(call, hosted, paths[0], body)
    rows = [{"name": posixpath.basename(path), "type": "file", "path": path} for path in paths]
    return as_json(rows)


async def info(call: Call) -> Response:
    """Describe a file or folder."""
    given, hosted = await _message(call)
    path = located(wire.text_of(given, "path"))
    return await _described(hosted, path)


async def list_folder(call: Call) -> Response:
    """List a folder, and those in it down to a depth."""
    given, hosted = await _message(call)
    path, depth = located(wire.text_of(given, "path")), given.get("depth") or 1
    if not isinstance(depth, int) or not 1 <= depth <= MOST_DEPTH:
        raise Problem(400, "invalid", f"depth must be from 1 to {MOST_DEPTH}")
    rows = await _inspect(hosted, path, depth)
    return as_json({"entries": [_entry(one) for one in rows]})


async def make_folder(call: Call) -> Response:
    """Make a folder and its parents; 409 if it is there."""
    given, hosted = await _message(call)
    path = located(wire.text_of(given, "path"))
    try:
        (found,) = await _inspect(hosted, path)
    except Problem as exc:
        if exc.status != 404:
            raise
    else:
        is_folder = stat.S_ISDIR(found.mode)
        words = "it is there already" if is_folder else "it is a file"
        raise Problem(409 if is_folder else 400, "file", f"{path!r}: {words}")
    await _changed(hosted.files.mkdir(path), path)
    return await _described(hosted, path)


async def move(call: Call) -> Response:
    """Rename a file or folder; a file that has the new name is replaced."""
    given, hosted = await _message(call)
    source, target = (located(wire.text_of(given, one)) for one in ("source", "destination"))
    await _changed(hosted.files.move(source, target, overwrite=True), source)
    return await _described(hosted, target)


async def remove(call: Call) -> Response:
    """Delete a file, or a folder with all it holds; what is not there is no error."""
    given, hosted = await _message(call)
    path = located(wire.text_of(given, "path"))
    try:
        await _changed(hosted.files.delete(path, recursive=True), path)
    except Problem as exc:
        if exc.status != 404:
            raise
    return as_json({})


async def create_watcher(call: Call) -> Response:
    """Begin to collect the changes of a folder."""
    given, hosted = await _message(call)
    watchers = call.service.e2b.facts(hosted).watchers
    if len(watchers) >= MOST_WATCHERS:
        raise Problem(429, "rate_limited", f"a sandbox has at most {MOST_WATCHERS} watchers")
    ident = new_id("wat")
    watchers[ident] = await _watch(hosted, given)
    call.service.e2b.watched.add(hosted)
    return as_json({"watcherId": ident})


async def watcher_events(call: Call) -> Response:
    """Return the changes since the last time."""
    given, hosted = await _message(call)
    found = _watcher(call, hosted, given)
    changes = await anext(found.changes(0.01))
    return as_json({"events": _events(changes)})


async def remove_watcher(call: Call) -> Response:
    """Stop collecting changes."""
    given, hosted = await _message(call)
    _watcher(call, hosted, given).close()
    del call.service.e2b.facts(hosted).watchers[wire.text_of(given, "watcherId")]
    return as_json({})


async def watch(call: Call) -> Response:
    """Stream the changes of a folder."""
    hosted = call.service.e2b.sandbox(call)
    given = await wire.message(call)
    return wire.FrameResponse(call, _stream(call, hosted, await _watch(hosted, given)), hosted.id)


async def _stream(
    call: Call, hosted: HostedSession, found: FolderWatch
) -> AsyncIterator[list[Event]]:
    with found:
        yield [(0, "start", wire.frame({"start": {}}))]
        async for changes in found.changes(call.service.settings.keepalive_seconds):
            if hosted.over or call.service.stopping:
                break
            told: list[dict[str, Any]] = [{"filesystem": one} for one in _events(changes)]
            yield [(0, "", wire.frame(one)) for one in told or [{"keepalive": {}}]]
        yield [(0, "end", wire.last_frame())]


async def _watch(hosted: HostedSession, given: dict[str, Any]) -> FolderWatch:
    path = located(wire.text_of(given, "path"))
    try:
        return await hosted.files.watch(path, recursive=given.get("recursive") is True)
    except (OSError, ValueError) as exc:
        raise _refusal(path, exc) from None


def _watcher(call: Call, hosted: HostedSession, given: dict[str, Any]) -> FolderWatch:
    found = call.service.e2b.facts(hosted).watchers.get(wire.text_of(given, "watcherId"))
    if found is None:
        raise Problem(404, "not_found", "there is no such watcher")
    return found


def _events(changes: list[Change]) -> list[dict[str, str]]:
    return [
        {"name": one.path, "type": f"EVENT_TYPE_{_EVENTS[one.kind]}"}
        for one in changes
        if one.kind in _EVENTS and not _DRAFT.search(one.path)
    ]


async def _store(
    call: Call, hosted: HostedSession, path: str, pieces: AsyncIterator[bytes]
) -> None:
    """Write a file of a sandbox once all of its bytes have come."""
    with Spool(call) as spool:
        answer = await (await spool.fill(pieces)).store(hosted.files, path)
    if "error" in answer:
        error = FileError(answer["error"])
        status = _STATUSES.get(error, 400)
        raise Problem(status, "file", f"{path!r}: {answer.get('reason') or error}")


async def _of_form(
    call: Call, hosted: HostedSession, kind: str, body: AsyncIterator[bytes]
) -> list[str]:
    """Write the files of a form as they come; return their paths."""
    found: list[str] = []
    async for part in Form(kind, body).parts():
        if part.filename is None:
            continue
        if len(found) >= MOST_FILES:
            raise Problem(413, "too_large", f"at most {MOST_FILES} files at a time")
        path = located(call.query("path") or part.filename)
        await _store(call, hosted, path, part.pieces())
        found.append(path)
    return found


async def _message(call: Call) -> tuple[dict[str, Any], HostedSession]:
    return await call.decoded(wire.parse), call.service.e2b.sandbox(call)


async def _described(hosted: HostedSession, path: str) -> Response:
    (found,) = await _inspect(hosted, path)
    return as_json({"entry": _entry(found)})


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


def _entry(found: Entry) -> dict[str, Any]:
    kinds = {stat.S_IFDIR: "DIRECTORY", stat.S_IFLNK: "SYMLINK", stat.S_IFREG: "FILE"}
    return {
        "name": posixpath.basename(found.path),
        "type": f"FILE_TYPE_{kinds.get(stat.S_IFMT(found.mode), 'UNSPECIFIED')}",
        "path": found.path,
        "size": str(found.size),
        "mode": stat.S_IMODE(found.mode),
        "permissions": stat.filemode(found.mode),
        "owner": "user",
        "group": "user",
        "modifiedTime": iso_time(found.modified),
    }


def _refusal(path: str, fault: OSError | ValueError) -> Problem:
    if isinstance(fault, OSError) and fault.errno is None:  # of a file operation, by its kind
        kinds = ((FileNotFoundError, 404), (PermissionError, 403), (FileExistsError, 409))
        status = next((code for kind, code in kinds if isinstance(fault, kind)), 400)
        return Problem(status, "file", str(fault))
    error = FileError(code_of(fault))
    return Problem(_STATUSES.get(error, 400), "file", f"{path!r}: {error}")

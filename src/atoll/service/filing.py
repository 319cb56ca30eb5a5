"""Handlers of a session's files: whole files by address, and every operation by its name."""

from __future__ import annotations

import mimetypes
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import Response

from atoll.files.base import request
from atoll.files.types import FileError
from atoll.guest.workspace import code_of
from atoll.service import shapes
from atoll.service.calls import as_json, nothing, until_gone
from atoll.service.problems import Problem

if TYPE_CHECKING:
    from msgspec import Struct
    from starlette.types import Receive, Scope, Send

    from atoll.files.base import Files
    from atoll.files.live import FileReader
    from atoll.service.calls import Call
    from atoll.service.hosted import HostedSession

PIECE = 1 << 18
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")
_STATUSES = {
    FileError.FILE_NOT_FOUND: 404,
    FileError.PERMISSION_DENIED: 403,
    FileError.TOO_LARGE: 413,
    FileError.FILE_EXISTS: 409,
    FileError.NO_SPACE: 507,
}


class _AtPath(shapes.Body, kw_only=True):
    path: str = "."


class _Read(_AtPath, kw_only=True):
    offset: int
    limit: int


class _Write(_AtPath, kw_only=True):
    content: str


class _Edit(_AtPath, kw_only=True):
    old: str
    new: str
    replace_all: bool = False


class _Glob(_AtPath, kw_only=True):
    pattern: str


class _Grep(_Glob, kw_only=True):
    glob: str | None = None
    regex: bool = False
    ignore_case: bool = False
    max_results: int = 1000


class _Delete(_AtPath, kw_only=True):
    recursive: bool = False


class _Move(_AtPath, kw_only=True):
    target: str
    overwrite: bool = False


OPERATIONS: dict[str, type[Struct]] = {
    "ls": _AtPath, "read": _Read, "read_raw": _AtPath, "write": _Write, "edit": _Edit,
    "glob": _Glob, "grep": _Grep, "stat": _AtPath, "delete": _Delete, "move": _Move,
    "mkdir": _AtPath,
}  # fmt: skip


async def operate(call: Call) -> Response:
    """Carry out a file operation: ls, read, write, edit, glob, grep, stat, delete, move, mkdir."""
    name = call.path["operation"]
    if name not in OPERATIONS:
        text = f"no file operation {name!r}: there are {', '.join(OPERATIONS)}"
        raise Problem(404, "not_found", text)
    given: Any = shapes.read(await call.body(), OPERATIONS[name])
    params = {field: getattr(given, field) for field in given.__struct_fields__}
    if min(params.get("offset", 0), params.get("limit", 0), params.get("max_results", 0)) < 0:
        raise Problem(400, "invalid", "offset, limit and max_results must be 0 or more")
    return as_json(await request(_files(call), name, params))


async def list_folder(call: Call) -> Response:
    """List a folder of the session."""
    found = await _files(call).ls(call.query("path", "."))
    entries = [
        {"path": one.path, "type": "dir" if one.is_dir else "file", "size": one.size,
         "modified_at": one.modified_at}
        for one in found
    ]  # fmt: skip
    return as_json({"entries": entries, "truncated": found.truncated})


async def download(call: Call) -> Response:
    """Return a file's bytes, or the part that the header Range names; only that is read."""
    path = _path(call)
    try:
        file = await _session(call).files.open_file(path)
    except (OSError, ValueError) as exc:
        raise _refusal(path, FileError(code_of(exc))) from None
    try:
        return _part_of(call, path, file)
    except BaseException:
        file.close()
        raise


def _part_of(call: Call, path: str, file: FileReader) -> Response:
    headers, asked = call.request.headers, call.request.headers.get("range")
    name = path.rstrip("/").rpartition("/")[2]
    shown = quote(name, safe="", errors="surrogateescape")
    tag = f'"{file.tag}"'
    told = {
        "accept-ranges": "bytes",
        "content-disposition": f"attachment; filename*=UTF-8''{shown}",
        "etag": tag,
        "x-media-type": mimetypes.guess_type(name)[0] or "application/octet-stream",
    }
    if headers.get("if-none-match") == tag:
        file.close()
        return Response(None, 304, told)
    start, end, status = 0, file.size, 200
    if asked is not None and headers.get("if-range", tag) == tag:
        start, end = _span(asked, file.size)
        told["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
        status = 206
    told["content-length"] = str(end - start)
    wanted = call.request.method != "HEAD"
    call.service.metrics.file_bytes.labels("out").inc(end - start if wanted else 0)
    return FilePart(file, start, end, status, told, body=wanted)


class FilePart(Response):
    """A part of a file, read as the client takes it."""

    def __init__(
        self, file: FileReader, start: int, end: int, status: int, headers: dict[str, str], *,
        body: bool,
    ) -> None:  # fmt: skip
        super().__init__(None, status, headers, "application/octet-stream")
        self._file, self._at, self._end = file, start, end if body else start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send it; a client that goes away ends it."""
        try:
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
            await until_gone(receive, self._stream(send))
        finally:
            self._file.close()

    async def _stream(self, send: Send) -> None:
        while self._at < self._end:
            piece = await self._file.read(self._at, min(PIECE, self._end - self._at))
            if not piece:
                raise OSError("the file became shorter while it was read")
            self._at += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def upload(call: Call) -> Response:
    """Write a file, in place of one that is there, and its parent folders."""
    path, files = _path(call), _files(call)
    limit = call.service.settings.max_upload_bytes
    data = b"".join([piece async for piece in call.pieces(limit, slow=True)])
    await _check_tag(call, path)
    call.service.metrics.file_bytes.labels("in").inc(len(data))
    (done,) = await files.upload([(path, data)])
    if done.error is not None:
        raise _refusal(path, done.error)
    return nothing()


async def delete(call: Call) -> Response:
    """Delete a file; a folder, with all it holds, only with `recursive=1`."""
    path = _path(call)
    await _check_tag(call, path)
    answer = await request(
        _files(call), "delete", {"path": path, "recursive": call.flag("recursive")}
    )
    if "error" in answer:
        raise _refusal(path, FileError(answer["error"]))
    return nothing()


async def _check_tag(call: Call, path: str) -> None:
    """Raise 412 if the header If-Match names no tag that the file has now."""
    asked = call.request.headers.get("if-match")
    if asked is None:
        return
    try:
        file = await _session(call).files.open_file(path)
    except (OSError, ValueError):
        tags = set()
    else:
        tags = {"*", f'"{file.tag}"'}
        file.close()
    if tags.isdisjoint(part.strip() for part in asked.split(",")):
        raise Problem(412, "changed", f"{path!r} is not as If-Match says: read it again")


def _session(call: Call) -> HostedSession:
    return call.service.sessions.get(call.principal, call.path["session"])


def _files(call: Call) -> Files:
    return _session(call).files


def _path(call: Call) -> str:
    path = call.query("path")
    if not path:
        raise Problem(400, "invalid", "name the file: ?path=folder/name")
    return path


def _refusal(path: str, error: FileError | None) -> Problem:
    status = _STATUSES.get(error, 422) if error is not None else 422
    return Problem(status, "file", f"{path!r}: {error}", file_error=str(error))


def _span(asked: str, size: int) -> tuple[int, int]:
    """Return the part of a file that a Range header names; 416 if there is no such part."""
    match = _RANGE.match(asked.replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        raise Problem(416, "range", f"one range of bytes is understood, not {asked[:100]!r}")
    if not match[1]:
        start, end = max(0, size - int(match[2])), size
    else:
        start, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    if start >= end:
        raise Problem(416, "range", f"the file has {size:,} bytes")
    return start, end

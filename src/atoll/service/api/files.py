"""Handlers of a session's files: whole files by address, and folders."""

from __future__ import annotations

import mimetypes
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response

from atoll.files.base import request
from atoll.guest.shared.workspace import code_of, words
from atoll.service.api.file_operations import FileEntries, entries, refusal
from atoll.service.http.problems import Problem
from atoll.service.http.requests import PieceResponse
from atoll.service.storage.spool import Spool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.files.base import Files
    from atoll.files.live import FileReader
    from atoll.service.http.requests import ApiRequest

PIECE = 1 << 18
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")


async def list_folder(call: ApiRequest) -> FileEntries:
    """List a folder of the session."""
    return entries(await request(_files(call), "ls", {"path": call.query("path", ".")}))


async def download(call: ApiRequest) -> Response:
    """Return a file's bytes, or the part that the header Range names; only that is read."""
    path = _path(call)
    try:
        file = await call.session.files.open_file(path)
    except (OSError, ValueError) as exc:
        raise refusal(path, code_of(exc), f"{path!r}: {words(exc)}") from None
    try:
        return _part_of(call, path, file)
    except BaseException:
        file.close()
        raise


def _part_of(call: ApiRequest, path: str, file: FileReader) -> Response:
    headers, asked = call.request.headers, call.request.headers.get("range")
    name = path.rstrip("/").rpartition("/")[2]
    shown = quote(name, safe="", errors="surrogateescape")
    tag = f'"{file.tag}"'
    sent = {
        "accept-ranges": "bytes",
        "content-disposition": f"attachment; filename*=UTF-8''{shown}",
        "etag": tag,
        "x-media-type": mimetypes.guess_type(name)[0] or "application/octet-stream",
    }
    if headers.get("if-none-match") == tag:
        file.close()
        return Response(None, 304, sent)
    start, end, status = 0, file.size, 200
    if asked is not None and headers.get("if-range", tag) == tag:
        start, end = _span(asked, file.size)
        sent["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
        status = 206
    sent["content-length"] = str(end - start)
    wanted = call.request.method != "HEAD"
    call.service.metrics.file_bytes.labels("out").inc(end - start if wanted else 0)
    return FilePart(file, start, end, status, sent, body=wanted)


class FilePart(PieceResponse):
    """A part of a file, read as the client takes it."""

    def __init__(
        self,
        file: FileReader,
        start: int,
        end: int,
        status: int,
        headers: dict[str, str],
        *,
        body: bool,
    ) -> None:
        super().__init__(None, status, headers, "application/octet-stream")
        self._file, self._at, self._end = file, start, end if body else start

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the part as it is read."""
        while self._at < self._end:
            piece = await self._file.read(self._at, min(PIECE, self._end - self._at))
            if not piece:
                raise OSError("the file became shorter while it was read")
            self._at += len(piece)
            yield piece

    async def close(self) -> None:
        """Close the file."""
        self._file.close()


async def upload(call: ApiRequest) -> None:
    """Write or overwrite a file, and create its parent folders."""
    path, files = _path(call), _files(call)
    with Spool(call) as spool:
        await spool.fill(call.pieces("max_upload_bytes", slow=True))
        await _check_tag(call, path)
        call.service.metrics.file_bytes.labels("in").inc(spool.size)
        answer = await spool.store(files, path)
    if "error" in answer:
        raise refusal(path, answer["error"], f"{path!r}: {answer['reason']}")


async def delete(call: ApiRequest) -> None:
    """Delete a file; a folder, with all it holds, only with `recursive=1`."""
    path = _path(call)
    await _check_tag(call, path)
    answer = await request(
        _files(call), "delete", {"path": path, "recursive": call.flag("recursive")}
    )
    if "error" in answer:
        raise refusal(path, answer["error"], f"{path!r}: {answer['reason']}")


async def _check_tag(call: ApiRequest, path: str) -> None:
    """Raise 412 if the header If-Match names no tag that the file has now."""
    asked = call.request.headers.get("if-match")
    if asked is None:
        return
    try:
        file = await call.session.files.open_file(path)
    except (OSError, ValueError):
        tags = set()
    else:
        tags = {"*", f'"{file.tag}"'}
        file.close()
    if tags.isdisjoint(part.strip() for part in asked.split(",")):
        raise Problem(412, "changed", f"{path!r} is not as If-Match says: read it again")


def _files(call: ApiRequest) -> Files:
    return call.session.files


def _path(call: ApiRequest) -> str:
    path = call.query("path")
    if not path:
        raise Problem(400, "invalid", "name the file: ?path=folder/name")
    return path


def _span(asked: str, size: int) -> tuple[int, int]:
    """Return the part of a file that a Range header names; 416 if the part does not exist."""
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

"""Handlers of LibreChat's files: uploaded, listed, described, downloaded, deleted."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import FileResponse

from atoll.service.dialects.librechat.storage import ID, Scope, checked_name, new_id
from atoll.service.http.multipart import Form
from atoll.service.http.problems import Problem
from atoll.service.http.requests import Json
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from atoll.service.dialects.librechat.storage import FileStore, StoredFile
    from atoll.service.http.multipart import Part
    from atoll.service.http.requests import ApiRequest

MAX_FILES = 200
_FIELDS = ("kind", "id", "version", "read_only", "entity_id")


class KeptFile(Struct):
    """A file that was kept."""

    filename: str
    fileId: str  # noqa: N815 - as LibreChat writes it


class Upload(Struct, kw_only=True):
    """Files that were kept."""

    message: str = "success"
    storage_session_id: str
    session_id: str
    files: list[KeptFile]


class UploadOutcome(Struct, kw_only=True):
    """A file that was kept, or why it was not."""

    status: Literal["success", "error"]
    filename: str
    fileId: str | UnsetType = UNSET  # noqa: N815
    error: str | UnsetType = UNSET


class BatchUpload(Struct, kw_only=True):
    """Which files were kept."""

    message: Literal["success", "partial_success", "error"]
    storage_session_id: str
    session_id: str
    files: list[UploadOutcome]
    succeeded: int
    failed: int
    filesLimitReached: bool | UnsetType = UNSET  # noqa: N815
    maxFiles: int | UnsetType = UNSET  # noqa: N815


class FileSummary(Struct, kw_only=True):
    """A file as a bucket would list it."""

    name: str
    size: int
    lastModified: str  # noqa: N815
    etag: str


class FileDetail(FileSummary, kw_only=True):
    """The description of a file."""

    contentType: str  # noqa: N815
    readOnly: bool  # noqa: N815
    originalFilename: str  # noqa: N815


class FullFile(FileSummary, kw_only=True):
    """A file with `detail=full`."""

    id: str
    storage_session_id: str
    session_id: str
    metadata: dict[str, str]
    contentType: str  # noqa: N815
    versionId: None = None  # noqa: N815


class NormalizedFile(Struct, kw_only=True):
    """A file with `detail=normalized`."""

    id: str
    name: str
    storage_session_id: str
    size: int
    contentType: str  # noqa: N815
    lastModified: str  # noqa: N815
    read_only: bool | UnsetType = UNSET


class DeletedFile(Struct):
    """A file that was deleted."""

    session_id: str
    fileId: str  # noqa: N815
    message: str = "deleted"


async def upload(call: ApiRequest) -> Upload:
    """Keep one file, or several."""
    storage, files, failed = await _receive(call)
    if not files:
        raise failed[0] if failed else Problem(400, "invalid", "the form has no file")
    kept = [KeptFile(file.name, file.id) for file in files]
    return Upload(storage_session_id=storage, session_id=storage, files=kept)


async def upload_batch(call: ApiRequest) -> Json[BatchUpload]:
    """Keep several files; tell of each whether it was kept."""
    storage, files, failed = await _receive(call)
    outcomes = [UploadOutcome(status="success", filename=f.name, fileId=f.id) for f in files]
    for problem in failed:
        name = problem.more.get("filename", "")
        outcomes.append(UploadOutcome(status="error", filename=name, error=problem.detail))
    limit = any(problem.code == "too_many" for problem in failed)
    answer = BatchUpload(
        message="success" if not failed else "partial_success" if files else "error",
        storage_session_id=storage,
        session_id=storage,
        files=outcomes,
        succeeded=len(files),
        failed=len(failed),
        filesLimitReached=True if limit else UNSET,
        maxFiles=MAX_FILES if limit else UNSET,
    )
    return Json(answer, 200 if files else 400)


async def list_files(
    call: ApiRequest,
) -> Json[list[str] | list[FileSummary] | list[FullFile] | list[NormalizedFile]]:
    """List the files of a storage session."""
    detail = call.query("detail") or "simple"
    if detail not in _DETAILS:
        raise Problem(400, "invalid", f"detail is one of {', '.join(_DETAILS)}")
    scope = _scope(call)
    kept = _store(call).list(call.principal, call.path["storage"])
    shown = [file for file in kept if scope.may_read(call.principal, file)]
    if kept and not shown:
        raise _foreign()
    return Json([_DETAILS[detail](file) for file in shown])


async def describe(call: ApiRequest) -> FileDetail:
    """Describe a file; LibreChat reads when it was last modified."""
    file = _file(call)
    return FileDetail(
        **_facts(file),
        contentType=file.media_type,
        readOnly=file.read_only,
        originalFilename=file.name,
    )


async def download(call: ApiRequest) -> FileResponse:
    """Return a file's bytes."""
    file = _file(call)
    name = PurePosixPath(file.name).name
    plain = "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else "_" for c in name)
    shown = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
    headers = {
        "content-disposition": shown,
        "content-security-policy": "sandbox; default-src 'none'",
        "etag": f'"{file.digest}"',
    }
    path = await _store(call).path(call.principal, file)
    return FileResponse(path, 200, headers, "application/octet-stream")


async def delete(call: ApiRequest) -> DeletedFile:
    """Delete a file."""
    file = _file(call)
    await _store(call).delete(call.principal, file)
    return DeletedFile(file.storage, file.id)


async def _receive(call: ApiRequest) -> tuple[str, list[StoredFile], list[Problem]]:
    """Read a form, and keep each file as it comes; the fields are before the files."""
    limit = call.service.settings.max_upload_bytes
    most = 4 * limit  # the fields and the boundaries, and several files
    content_type = call.request.headers.get("content-type", "")
    form = Form(content_type, call.pieces(most, slow=True))
    fields: dict[str, str] = {}
    kept: list[StoredFile] = []
    failed: list[Problem] = []
    storage = new_id()
    async for part in form.parts():
        if part.filename is None:
            if part.name in _FIELDS:
                fields[part.name] = await part.text()
            continue
        try:
            kept.append(await _keep(call, part, storage, fields, len(kept) + len(failed)))
        except Problem as exc:
            if exc.status not in (400, 413):
                raise
            failed.append(Problem(exc.status, exc.code, exc.detail, filename=part.filename[:300]))
            if len(failed) > MAX_FILES:  # each part takes more memory than it has bytes
                raise
    return storage, kept, failed


async def _keep(
    call: ApiRequest, part: Part, storage: str, fields: dict[str, str], already: int
) -> StoredFile:
    if already >= MAX_FILES:
        raise Problem(400, "too_many", f"at most {MAX_FILES} files at once")
    kind, ident = fields.get("kind", ""), fields.get("id", "")
    if not kind and fields.get("entity_id"):
        kind, ident = "agent", fields["entity_id"]
    owner = Scope(kind, ident, fields.get("version", "")).owner(call.principal)
    limit, size = call.service.settings.max_upload_bytes, 0

    async def pieces() -> Any:
        nonlocal size
        async for piece in part.pieces():
            size += len(piece)
            if size > limit:
                raise Problem(413, "too_large", "File size limit exceeded")
            yield piece

    name = checked_name(part.filename)
    read_only = fields.get("read_only", "").lower() in ("1", "true")
    return await _store(call).put(
        call.principal, storage, owner, name, pieces(), read_only=read_only
    )


def _file(call: ApiRequest) -> StoredFile:
    storage, ident = call.path["storage"], call.path["file"]
    if not ID.match(storage) or not ID.match(ident):
        raise Problem(404, "not_found", "File not found")
    file = _store(call).get(call.principal, storage, ident)
    if not _scope(call).may_read(call.principal, file):
        raise _foreign()
    return file


def _foreign() -> Problem:
    return Problem(403, "forbidden", "the storage session belongs to another user or agent")


def _scope(call: ApiRequest) -> Scope:
    return Scope(call.query("kind"), call.query("id"), call.query("version"))


def _store(call: ApiRequest) -> FileStore:
    return call.service.librechat.files


def _address(file: StoredFile) -> str:
    return f"{file.storage}/{file.id}{PurePosixPath(file.name).suffix}"


def _facts(file: StoredFile) -> dict[str, Any]:
    """Return the fields of a FileSummary."""
    modified, etag = iso_time(file.created), file.digest[:32]
    return {"name": _address(file), "size": file.size, "lastModified": modified, "etag": etag}


def _full(file: StoredFile) -> FullFile:
    return FullFile(
        **_facts(file),
        id=file.id,
        storage_session_id=file.storage,
        session_id=file.storage,
        metadata={"content-type": file.media_type, "original-filename": file.name},
        contentType=file.media_type,
    )


def _normalized(file: StoredFile) -> NormalizedFile:
    return NormalizedFile(
        id=file.id,
        name=file.name,
        storage_session_id=file.storage,
        size=file.size,
        contentType=file.media_type,
        lastModified=iso_time(file.created),
        read_only=file.read_only or UNSET,
    )


_DETAILS: dict[str, Any] = {
    "simple": _address,
    "summary": lambda file: FileSummary(**_facts(file)),
    "full": _full,
    "normalized": _normalized,
}

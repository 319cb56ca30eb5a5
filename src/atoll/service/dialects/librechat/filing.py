"""Handlers of LibreChat's files: uploaded, listed, described, downloaded, deleted."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import FileResponse

from atoll.service.dialects.librechat.storage import ID, Scope, checked_name, new_id
from atoll.service.http.multipart import Form
from atoll.service.http.problems import Problem
from atoll.service.http.requests import as_json
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from starlette.responses import Response

    from atoll.service.dialects.librechat.storage import FileStore, StoredFile
    from atoll.service.http.multipart import Part
    from atoll.service.http.requests import Call

MOST_FILES = 200
_FIELDS = ("kind", "id", "version", "read_only", "entity_id")


async def upload(call: Call) -> Response:
    """Keep one file, or several."""
    storage, files, failed = await _receive(call)
    if not files:
        raise failed[0] if failed else Problem(400, "invalid", "the form has no file")
    told = [{"filename": one.name, "fileId": one.id} for one in files]
    ids = {"storage_session_id": storage, "session_id": storage}
    return as_json({"message": "success", **ids, "files": told})


async def upload_batch(call: Call) -> Response:
    """Keep several files; tell of each whether it was kept."""
    storage, files, failed = await _receive(call)
    told: list[dict[str, Any]] = [
        {"status": "success", "filename": one.name, "fileId": one.id} for one in files
    ]
    told += [
        {"status": "error", "filename": one.more.get("filename", ""), "error": one.detail}
        for one in failed
    ]
    message = "success" if not failed else "partial_success" if files else "error"
    limit = any(one.code == "too_many" for one in failed)
    answer = {
        "message": message,
        "storage_session_id": storage,
        "session_id": storage,
        "files": told,
        "succeeded": len(files),
        "failed": len(failed),
        **({"filesLimitReached": True, "maxFiles": MOST_FILES} if limit else {}),
    }
    return as_json(answer, 200 if files else 400)


async def list_files(call: Call) -> Response:
    """List the files of a storage session."""
    detail = call.query("detail") or "simple"
    if detail not in _DETAILS:
        raise Problem(400, "invalid", f"detail is one of {', '.join(_DETAILS)}")
    scope = _scope(call)
    found = _store(call).list(call.principal, call.path["storage"])
    if found and not any(scope.may_read(call.principal, one) for one in found):
        raise _foreign()
    shown = [one for one in found if scope.may_read(call.principal, one)]
    return as_json([_DETAILS[detail](one) for one in shown])


async def describe(call: Call) -> Response:
    """Return what is known of a file; LibreChat reads when it was last modified."""
    file = _file(call)
    return as_json(
        {
            **_summary(file),
            "name": f"{file.storage}/{file.id}{PurePosixPath(file.name).suffix}",
            "contentType": file.media_type,
            "readOnly": file.read_only,
            "originalFilename": file.name,
        }
    )


async def download(call: Call) -> Response:
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


async def delete(call: Call) -> Response:
    """Delete a file."""
    file = _file(call)
    await _store(call).delete(call.principal, file)
    return as_json({"message": "deleted", "session_id": file.storage, "fileId": file.id})


async def _receive(call: Call) -> tuple[str, list[StoredFile], list[Problem]]:
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
            if len(failed) > MOST_FILES:  # each part takes more memory than it has bytes
                raise
    return storage, kept, failed


async def _keep(
    call: Call, part: Part, storage: str, fields: dict[str, str], already: int
) -> StoredFile:
    if already >= MOST_FILES:
        raise Problem(400, "too_many", f"at most {MOST_FILES} files at once")
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

    return await _store(call).put(
        call.principal, storage, owner, checked_name(part.filename), pieces(),
        read_only=fields.get("read_only", "").lower() in ("1", "true"),
    )  # fmt: skip


def _file(call: Call) -> StoredFile:
    storage, ident = call.path["storage"], call.path["file"]
    if not ID.match(storage) or not ID.match(ident):
        raise Problem(404, "not_found", "File not found")
    file = _store(call).get(call.principal, storage, ident)
    if not _scope(call).may_read(call.principal, file):
        raise _foreign()
    return file


def _foreign() -> Problem:
    return Problem(403, "forbidden", "the storage session belongs to another user or agent")


def _scope(call: Call) -> Scope:
    return Scope(call.query("kind"), call.query("id"), call.query("version"))


def _store(call: Call) -> FileStore:
    return call.service.librechat.files


def _summary(file: StoredFile) -> dict[str, Any]:
    name = f"{file.storage}/{file.id}{PurePosixPath(file.name).suffix}"
    etag = file.digest[:32]
    return {"name": name, "size": file.size, "lastModified": iso_time(file.created), "etag": etag}


def _full(file: StoredFile) -> dict[str, Any]:
    return {
        **_summary(file),
        "id": file.id,
        "storage_session_id": file.storage,
        "session_id": file.storage,
        "metadata": {"content-type": file.media_type, "original-filename": file.name},
        "contentType": file.media_type,
        "versionId": None,
    }


def _normalized(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "name": file.name,
        "storage_session_id": file.storage,
        "size": file.size,
        "contentType": file.media_type,
        "lastModified": iso_time(file.created),
        **({"read_only": True} if file.read_only else {}),
    }


_DETAILS: dict[str, Any] = {
    "simple": lambda file: f"{file.storage}/{file.id}{PurePosixPath(file.name).suffix}",
    "summary": _summary,
    "full": _full,
    "normalized": _normalized,
}

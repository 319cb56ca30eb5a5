"""The file operations of a session over HTTP: one table of what each takes and answers.

POST /sessions/ID/files/NAME        the answer as labelled objects; an error is a problem
POST /sessions/ID/files/NAME?raw=1  the plain answer of guest/shared/workspace, for `remote`
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct, to_builtins

from atoll.files.base import infos, request
from atoll.files.types import FileError
from atoll.guest.shared.workspace import LINES, MAX_MATCHES
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import as_json
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response

    from atoll.files.types import FileInfo
    from atoll.service.http.requests import Call

_STATUSES = {
    FileError.FILE_NOT_FOUND: 404,
    FileError.PERMISSION_DENIED: 403,
    FileError.TOO_LARGE: 413,
    FileError.FILE_EXISTS: 409,
    FileError.NO_SPACE: 507,
}
_READ_WHOLE = ("read", "read_raw", "edit")
"""Operations that read the whole file into memory."""
READ_COST = 3
"""What is held of such a file: its bytes, its text, and the answer."""
_COUNTS = ("offset", "limit", "max_results")


class FilePath(bodies.Body, kw_only=True):
    """A file or folder."""

    path: str = "."


class ReadFile(FilePath, kw_only=True):
    """Lines from `offset` on."""

    offset: int = 0
    limit: int = LINES


class WriteFile(FilePath, kw_only=True):
    """A new text file."""

    content: str


class EditFile(FilePath, kw_only=True):
    """A text to replace, which has to occur once unless `replace_all`."""

    old: str
    new: str
    replace_all: bool = False


class GlobFiles(FilePath, kw_only=True):
    """A pattern of paths below a folder."""

    pattern: str


class GrepFiles(GlobFiles, kw_only=True):
    """A text, or a regular expression, to find in files that match `glob`."""

    glob: str | None = None
    regex: bool = False
    ignore_case: bool = False
    max_results: int = MAX_MATCHES


class DeleteFile(FilePath, kw_only=True):
    """A file, or with `recursive` a folder and all it holds."""

    recursive: bool = False


class MoveFile(FilePath, kw_only=True):
    """A file, folder or link, and its new path."""

    target: str
    overwrite: bool = False


class FileEntry(Struct):
    """A file or folder."""

    path: str
    type: Literal["file", "dir"]
    size: int
    modified_at: str


class FileEntries(Struct):
    """Files and folders."""

    entries: list[FileEntry]
    truncated: bool


class FileMatch(Struct):
    """A line that matches."""

    path: str
    line: int
    text: str


class FileMatches(Struct):
    """Lines that match."""

    matches: list[FileMatch]
    truncated: bool


class FileText(Struct):
    """Numbered lines, as a model reads them."""

    text: str


class FileLines(Struct):
    """The lines of a text file, and its times."""

    content: list[str]
    created_at: str
    modified_at: str


class FileDone(Struct):
    """Where the file or folder is, or was."""

    path: str


class FileEdited(FileDone):
    """How often the text was replaced."""

    occurrences: int


class FileOperation(NamedTuple):
    """What an operation takes and answers, and how its plain answer becomes that."""

    summary: str
    body: type[Struct]
    answer: type[Struct]
    label: Callable[[dict[str, Any], dict[str, Any]], Struct]


def _entry(one: FileInfo) -> FileEntry:
    return FileEntry(one.path, "dir" if one.is_dir else "file", one.size, one.modified_at)


def entries(answer: dict[str, Any], _params: object = None) -> FileEntries:
    """Return files and folders as objects."""
    return FileEntries([_entry(one) for one in infos(answer["entries"])], answer["truncated"])


def _matches(answer: dict[str, Any], _params: object) -> FileMatches:
    return FileMatches([FileMatch(*one) for one in answer["matches"]], answer["truncated"])


def _lines(answer: dict[str, Any], _params: object) -> FileLines:
    created, modified = iso_time(answer["created"]), iso_time(answer["modified"])
    return FileLines(answer["content"], created, modified)


def _done(_answer: object, params: dict[str, Any]) -> FileDone:
    return FileDone(params.get("target", params["path"]))


OPERATIONS = {
    "ls": FileOperation("List a folder; no entries if there is none.", FilePath, FileEntries,
                        entries),
    "glob": FileOperation("Find files and folders by a pattern of their paths.", GlobFiles,
                          FileEntries, entries),
    "grep": FileOperation("Find lines of text files.", GrepFiles, FileMatches, _matches),
    "stat": FileOperation("Describe a file or folder.", FilePath, FileEntry,
                          lambda answer, _params: _entry(infos([answer["entry"]])[0])),
    "read": FileOperation("Return numbered lines of a text file, for a model.", ReadFile, FileText,
                          lambda answer, _params: FileText(answer["text"])),
    "read_raw": FileOperation("Return the lines of a text file.", FilePath, FileLines, _lines),
    "write": FileOperation("Make a text file; 409 if it is there already.", WriteFile, FileDone,
                           _done),
    "edit": FileOperation("Replace text in a file; 422 if it does not occur once.", EditFile,
                          FileEdited,
                          lambda answer, _p: FileEdited(answer["path"], answer["occurrences"])),
    "delete": FileOperation("Delete a file; a folder only with `recursive`.", DeleteFile, FileDone,
                            _done),
    "move": FileOperation("Rename a file or folder; 409 if the target exists.", MoveFile, FileDone,
                          _done),
    "mkdir": FileOperation("Make a folder and its parents.", FilePath, FileDone, _done),
}  # fmt: skip


async def operate(call: Call, name: str) -> Response:
    """Carry out a file operation; return its answer, or raise its error as a problem."""
    files = call.session.files
    operation = OPERATIONS[name]
    given: Any = await call.json(operation.body)
    params = {field: getattr(given, field) for field in given.__struct_fields__}
    if min(params.get(one, 0) for one in _COUNTS) < 0:
        raise Problem(400, "invalid", f"{', '.join(_COUNTS)} must be 0 or more")
    if name in _READ_WHOLE:
        with contextlib.suppress(OSError):  # the operation itself reports it
            call.held.grow(READ_COST * (await files.stat(params["path"])).size)
    answer = await request(files, name, params)
    if call.flag("raw"):
        return as_json(answer)
    _check(params["path"], answer)
    return labelled(operation.label(answer, params))


def labelled(answer: Struct) -> Response:
    """Return an answer as JSON: names of files may have lone surrogates, which a dict can hold."""
    return as_json(to_builtins(answer))


def refusal(path: str, error: str | None, text: str = "") -> Problem:
    """Return the answer for a file that could not be read, written, moved or deleted."""
    status = _STATUSES.get(FileError(error), 422) if error in _CODES else 422
    return Problem(status, "file", text or f"{path!r}: {error}", file_error=error)


_CODES = {str(one) for one in FileError}


def _check(path: str, answer: dict[str, Any]) -> None:
    """Raise the error that a plain answer tells of: as a code with a reason, or as a text."""
    text = str(answer.get("error", answer.get("text", "")))
    said = text.removeprefix("Error: ")
    if "reason" in answer:
        raise refusal(path, text, f"{path!r}: {answer['reason']}")
    if "error" in answer:
        raise refusal(path, answer.get("code", "not_edited"), said)
    if "code" in answer:
        raise refusal(path, answer["code"], said)
    if said != text:  # lines begin with their number; so this tells of an offset past the end
        raise Problem(416, "range", said)

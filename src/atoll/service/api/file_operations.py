"""The file operations of a session over HTTP: one table of what each takes and answers.

POST /sessions/ID/files/NAME        the answer as labelled objects; an error is a problem
POST /sessions/ID/files/NAME?raw=1  the plain answer of guest/shared/workspace, for `remote`
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct, structs

from atoll.files.base import infos, request
from atoll.files.types import FileError
from atoll.guest.shared.workspace import LINES, MAX_MATCHES
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import Json
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.files.types import FileInfo
    from atoll.service.http.requests import ApiRequest

Plain = dict[str, Any]
"""An answer, or the parameters, of an operation as guest/shared/workspace has them."""
STATUSES = {
    FileError.FILE_NOT_FOUND: 404,
    FileError.PERMISSION_DENIED: 403,
    FileError.TOO_LARGE: 413,
    FileError.FILE_EXISTS: 409,
    FileError.NO_SPACE: 507,
}
_READ_WHOLE = ("read", "read_raw", "edit")
"""Operations that read the whole file into memory."""
READ_COST = 3
"""Held for each byte of a file: its bytes, its text, and the answer."""
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
    label: Callable[[Plain, Plain], Struct]


def _entry(info: FileInfo) -> FileEntry:
    return FileEntry(info.path, "dir" if info.is_dir else "file", info.size, info.modified_at)


def entries(answer: Plain, _params: object = None) -> FileEntries:
    """Return files and folders as objects."""
    return FileEntries([_entry(info) for info in infos(answer["entries"])], answer["truncated"])


def _matches(answer: Plain, _params: object) -> FileMatches:
    return FileMatches([FileMatch(*row) for row in answer["matches"]], answer["truncated"])


def _lines(answer: Plain, _params: object) -> FileLines:
    created, modified = iso_time(answer["created"]), iso_time(answer["modified"])
    return FileLines(answer["content"], created, modified)


def _done(_answer: object, params: Plain) -> FileDone:
    return FileDone(str(params.get("target", params["path"])))


def _stat(answer: Plain, _params: object) -> FileEntry:
    return _entry(infos([answer["entry"]])[0])


def _text(answer: Plain, _params: object) -> FileText:
    return FileText(answer["text"])


def _edited(answer: Plain, _params: object) -> FileEdited:
    return FileEdited(answer["path"], answer["occurrences"])


_TABLE = (
    ("ls", "List a folder; no entries if there is none.", FilePath, FileEntries, entries),
    ("glob", "Find files and folders by a pattern of paths.", GlobFiles, FileEntries, entries),
    ("grep", "Find lines of text files.", GrepFiles, FileMatches, _matches),
    ("stat", "Describe a file or folder.", FilePath, FileEntry, _stat),
    ("read", "Return numbered lines of a text file, for a model.", ReadFile, FileText, _text),
    ("read_raw", "Return the lines of a text file.", FilePath, FileLines, _lines),
    ("write", "Make a text file; 409 if it is there already.", WriteFile, FileDone, _done),
    ("edit", "Replace a text; 422 if it does not occur once.", EditFile, FileEdited, _edited),
    ("delete", "Delete a file; a folder only with `recursive`.", DeleteFile, FileDone, _done),
    ("move", "Rename a file or folder; 409 if the target exists.", MoveFile, FileDone, _done),
    ("mkdir", "Make a folder and its parents.", FilePath, FileDone, _done),
)
OPERATIONS = {row[0]: FileOperation(*row[1:]) for row in _TABLE}


async def operate(call: ApiRequest, name: str) -> Json[Any]:
    """Carry out a file operation; return its answer, or raise its error as a problem."""
    files = call.session.files
    operation = OPERATIONS[name]
    given = await call.json(operation.body)
    params = structs.asdict(given)
    if min(params.get(count, 0) for count in _COUNTS) < 0:
        raise Problem(400, "invalid", f"{', '.join(_COUNTS)} must be 0 or more")
    if name in _READ_WHOLE:
        with contextlib.suppress(OSError):  # the operation itself reports it
            call.held.grow(READ_COST * (await files.stat(params["path"])).size)
    answer = await request(files, name, params)
    if call.flag("raw"):
        return Json(answer)
    _check(params["path"], answer)
    return Json(operation.label(answer, params))


def refusal(path: str, error: str | None, text: str = "") -> Problem:
    """Return the answer for a file that could not be read, written, moved or deleted."""
    status = STATUSES.get(FileError(error), 422) if error in _CODES else 422
    return Problem(status, "file", text or f"{path!r}: {error}", file_error=error)


_CODES = set(map(str, FileError))


def _check(path: str, answer: Plain) -> None:
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

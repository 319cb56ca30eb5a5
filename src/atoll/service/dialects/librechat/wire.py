"""Bodies and answers of LibreChat's dialect: unknown fields are ignored, errors have its shape."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.responses import Response

from atoll.service.dialects.librechat.storage import ID, Scope, checked_name
from atoll.service.http.problems import Problem, encode

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.service.core.work import RunResult

T = TypeVar("T")
PROFILES = ("default", "stateful")
PROFILE_HEADER = "x-codeapi-execution-profile"
LANGUAGES = {"py": "py", "python": "py", "bash": "bash", "sh": "bash"}
MAX_INPUTS = 500
LONGEST_WAIT = 3600
_HINT = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


class FileIn(Struct):
    """A file that code is to find in its folder."""

    id: str
    name: str
    storage_session_id: str = ""
    session_id: str = ""
    resource_id: str = ""
    kind: str = ""
    version: int | None = None

    @property
    def storage(self) -> str:
        """The storage session; clients of old call it session_id."""
        return self.storage_session_id or self.session_id

    @property
    def scope(self) -> Scope:
        """What it belongs to."""
        version = "" if self.version is None else str(self.version)
        return Scope(self.kind, self.resource_id, version)


class Exec(Struct):
    """POST /exec, and what POST /exec/programmatic has of it."""

    code: str = ""
    lang: str = "py"
    args: Any = None
    session_id: str | None = None
    timeout: float | None = None
    runtime_session_hint: str | None = None
    files: list[FileIn] = []

    def check(self) -> str:
        """Return the language; 400 for an invalid request."""
        if not self.code:
            raise Problem(400, "invalid", "code is required")
        if self.lang not in LANGUAGES:
            error = f"Unsupported language: {self.lang[:50]}"
            raise Problem(400, "unsupported_language", "use py or bash", error=error)
        hint = self.runtime_session_hint
        if hint is not None and not _HINT.match(hint):
            raise Problem(400, "invalid", "runtime_session_hint is not valid")
        if len(self.files) > MAX_INPUTS:
            raise Problem(400, "invalid", f"at most {MAX_INPUTS} files")
        for file in self.files:
            checked_name(file.name)
            if not ID.match(file.id) or not ID.match(file.storage):
                raise Problem(404, "not_found", f"File not found: {file.name}")
        return LANGUAGES[self.lang]

    @property
    def arguments(self) -> list[str]:
        """The program's arguments: a list of texts, or whatever a client makes of it."""
        if self.args is None:
            return []
        given = self.args if isinstance(self.args, list) else [self.args]
        return [text if isinstance(text, str) else encode(text).decode() for text in given]


class ToolResult(Struct):
    """What a tool returned, or why it failed."""

    call_id: str
    result: Any = None
    is_error: bool = False
    error_message: str | None = None


class Programmatic(Exec):
    """POST /exec/programmatic: the first request, or the continuation of one."""

    tools: list[dict[str, Any]] | None = None
    continuation_token: str | None = None
    tool_results: list[ToolResult] | None = None


class Cancel(Struct):
    """POST /exec/programmatic/cancel."""

    request_id: str = ""


def read(body: bytes, shape: type[T]) -> T:
    """Return a body in its shape; 400 if it is not."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (ValueError, RecursionError) as exc:
        raise Problem(400, "invalid", f"invalid body: {exc}"[:500]) from None


def profile(request: Request) -> str:
    """Return the profile that the client expects; 400 if there is no such profile."""
    expected = request.headers.get("x-codeapi-expected-profile", "default")
    if expected not in PROFILES:
        raise Problem(
            400,
            "invalid_execution_profile",
            "profiles are default and stateful",
            expected_profile=expected[:100],
            actual_profile="default",
        )
    return expected


def refusal(problem: Problem, request_id: str) -> Response:
    """Return a problem as LibreChat reads it."""
    body: dict[str, Any] = {
        "error": problem.more.get("error", problem.code),
        "message": problem.detail,
    }
    headers = {PROFILE_HEADER: "default", "x-request-id": request_id}
    body.update({name: value for name, value in problem.more.items() if name.endswith("_profile")})
    if problem.retry_after is not None:
        wait = min(LONGEST_WAIT, max(1, round(problem.retry_after)))
        body["retry_after_seconds"] = wait
        headers["retry-after"] = headers["ratelimit-reset"] = str(wait)
        headers["ratelimit-remaining"] = "0"
    if problem.status == 404:
        body["details"] = problem.detail
    return Response(encode(body), problem.status, headers, "application/json")


_LATE, _MEMORY = "Time limit exceeded", "Out of memory"
_WORDS = {
    "timeout": _LATE,
    "cpu": f"{_LATE} (CPU)",
    "fuel": f"{_LATE} (CPU)",
    "memory": _MEMORY,
    "cancelled": "Execution was cancelled",
}


def texts(result: RunResult) -> tuple[str, str]:
    """Return stdout and stderr of a result; how it ended is in stderr if it did not end well."""
    kind, code, stderr = result.kind, result.exit_code, result.stderr
    words = _WORDS.get(kind, "")
    if kind == "exited" and code:
        words = f"exit code {code}"
    elif kind in ("crashed", "broken"):
        words = f"Sandbox exited with code {code or 'unknown'}"
    elif kind in ("refused", "error") and not stderr:
        words = str(result.error)
    if result.truncated:
        words = f"{words}\n[output was cut]".strip()
    return result.stdout, "\n".join(filter(None, (stderr.rstrip("\n"), words)))


def error_text(result: RunResult) -> str | None:
    """Return the error of a programmatic run in the words that the client shows, or None."""
    kind, code = result.kind, result.exit_code
    if result.success:
        return None
    if kind in ("timeout", "cpu", "fuel"):
        return _LATE
    if kind == "memory":
        return _MEMORY
    if kind == "cancelled":
        return "Programmatic execution request cancelled"
    return f"Sandbox exited with code {code or ('unknown' if kind in ('crashed', 'broken') else 1)}"

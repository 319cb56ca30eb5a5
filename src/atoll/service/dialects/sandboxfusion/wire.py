"""Bodies and answers of SandboxFusion's API: unknown fields are ignored, as its server does."""

from __future__ import annotations

import base64
import posixpath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from starlette.responses import Response

from atoll.jail.supervisor.spec import SHOWN_FOLDERS, WORK_ALIAS
from atoll.policy import MAX_FOLDERS
from atoll.service.http.problems import Problem, encode
from atoll.types import Outcome

if TYPE_CHECKING:
    from atoll.types import ExecuteResponse, SandboxResult

T = TypeVar("T")
SKIPPED = "IGNORE_THIS_FILE"
_WRITABLE = (*SHOWN_FOLDERS, WORK_ALIAS)
MAX_FILES = 1_000
MAX_CELLS = 1_000
TRY_AGAIN = 504
"""The only status after which verl asks again; others ask again after every status but 200."""
_TIMED_OUT = 124
_SIGNALLED = 128


class Files(Struct, kw_only=True):
    """Files of a request: written before the code runs, read after it."""

    files: dict[str, str | None] = {}
    fetch_files: list[str] = []

    def decoded(self) -> list[tuple[str, bytes]]:
        """Return the files to write; 422 for too many files, or invalid base64."""
        if len(self.files) > MAX_FILES or len(self.fetch_files) > MAX_FILES:
            raise Problem(422, "invalid", f"at most {MAX_FILES:,} files and {MAX_FILES:,} to fetch")
        files = []
        for path, text in self.files.items():
            if text is None or SKIPPED in path:
                continue
            try:
                files.append((path, base64.b64decode(text)))
            except ValueError:
                raise Problem(422, "invalid", f"the file {path!r:.200} is not base64") from None
        return files

    def folders(self) -> tuple[str, ...]:
        """Return the folders of absolute paths, which have to be writable."""
        paths = [path for path in (*self.files, *self.fetch_files) if path.startswith("/")]
        folders = sorted({posixpath.dirname(posixpath.normpath(path)) for path in paths})
        kept: list[str] = []
        for folder in folders[: 10 * MAX_FOLDERS]:
            if not any(f"{folder}/".startswith(f"{known}/") for known in (*_WRITABLE, *kept)):
                kept.append(folder)
        return tuple(kept[:MAX_FOLDERS])

    @property
    def size(self) -> int:
        """What the decoded files take, at most."""
        return sum(len(text) for text in self.files.values() if text is not None) * 3 // 4


class RunCode(Files, kw_only=True):
    """POST /run_code."""

    code: str
    language: str
    compile_timeout: float | UnsetType = UNSET
    run_timeout: float = 10
    memory_limit: int = field(default=-1, name="memory_limit_MB")
    stdin: str | None = None


class RunJupyter(Files, kw_only=True):
    """POST /run_jupyter."""

    cells: list[str] = []
    cell_timeout: float = 0
    total_timeout: float = 45
    memory_limit: int = field(default=-1, name="memory_limit_MB")
    kernel: str = "python3"


class Ran(Struct, kw_only=True):
    """How a step ended."""

    status: Literal["Finished", "TimeLimitExceeded", "Error"] = "Finished"
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str = ""
    stderr: str = ""

    @classmethod
    def of_program(cls, result: SandboxResult) -> Ran:
        """Return how Python ended; the negative number of a signal that ended it."""
        seconds, code = result.duration_ms / 1000, result.exit_code
        ran = cls(execution_time=seconds, stdout=result.stdout, stderr=result.stderr)
        if result.kind in (Outcome.TIMEOUT, Outcome.CPU):
            ran.status = "TimeLimitExceeded"
            return ran
        if result.kind in (Outcome.CRASHED, Outcome.MEMORY) and code > _SIGNALLED:
            code = _SIGNALLED - code
        ran.return_code = code
        if result.error and not result.stderr and result.kind is not Outcome.EXITED:
            ran.stderr = f"{result.error}\n"
        return ran

    @classmethod
    def of_command(cls, response: ExecuteResponse, seconds: float) -> Ran:
        """Return how a command ended."""
        ran = cls(execution_time=seconds, stdout=response.stdout, stderr=response.stderr)
        if response.error is not None and response.exit_code == _TIMED_OUT:
            ran.status = "TimeLimitExceeded"
            return ran
        ran.return_code = 1 if response.exit_code is None else response.exit_code
        if response.error is not None:
            ran.stderr += f"{response.error}\n"
        return ran

    @property
    def is_good(self) -> bool:
        """Whether it ended in time, with 0."""
        return self.status == "Finished" and self.return_code == 0

    def cut(self, most: int) -> None:
        """Cut the output."""
        self.stdout, self.stderr = self.stdout[:most], self.stderr[:most]


class RunAnswer(Struct, kw_only=True):
    """The answer of POST /run_code."""

    status: Literal["Success", "Failed", "SandboxError"] = "Success"
    message: str = ""
    compile_result: Ran | None = None
    run_result: Ran | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """What the guest may make large, besides files."""
        steps = [step for step in (self.compile_result, self.run_result) if step is not None]
        return tuple(text for step in steps for text in (step.stdout, step.stderr))

    def cut(self) -> None:
        """Cut long texts, and leave files out."""
        self.files = {}
        for step in (self.compile_result, self.run_result):
            if step is not None:
                step.cut(_CUT)


class CellAnswer(Struct, kw_only=True):
    """What a notebook's cell printed and showed."""

    stdout: str = ""
    stderr: str = ""
    display: list[dict[str, Any]] = []
    error: list[dict[str, Any]] = []


class JupyterAnswer(Struct, kw_only=True):
    """The answer of POST /run_jupyter."""

    status: Literal["Success", "Failed", "SandboxError"] = "Success"
    message: str = ""
    driver: Ran | None = None
    cells: list[CellAnswer] = []
    executor_pod_name: str | None = None
    files: dict[str, str] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """What the guest may make large, besides files and displays."""
        return tuple(text for cell in self.cells for text in (cell.stdout, cell.stderr))

    def cut(self) -> None:
        """Cut long texts; leave displays and files out."""
        self.files = {}
        for cell in self.cells:
            cell.stdout, cell.stderr, cell.display = cell.stdout[:_CUT], cell.stderr[:_CUT], []


_CUT = 64 << 10


def read(body: bytes, shape: type[T]) -> T:
    """Return a body in its shape; 422 if it is not."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (ValueError, RecursionError) as exc:
        raise Problem(422, "invalid", f"invalid body: {exc}"[:500]) from None


def refusal(problem: Problem, request_id: str) -> Response:
    """Return a problem as clients read it: what may work later has the status to try again."""
    status = problem.status
    if status in (429, 503):
        status = TRY_AGAIN
    elif status in (410, 500, 501, 507):
        status = 200
    headers = {"x-request-id": request_id} if request_id else {}
    answer = RunAnswer(status="SandboxError", message=problem.detail)
    return Response(encode(answer), status, headers, "application/json")


def busy(what: str) -> Problem:
    """Return the refusal of a request that did not get its turn in time."""
    return Problem(
        503, "busy", f"the service is busy: {what}; nothing ran, try again", retry_after=1
    )

"""What the tools of the MCP server return as structured content: each class is an output schema."""

from __future__ import annotations

from atoll.extras import hint

try:
    from pydantic import BaseModel
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_outputs needs the MCP SDK. {hint('mcp')}") from exc


class CellOutput(BaseModel):
    """How Python code ended; what it printed is the text content."""

    session: str
    """The handle of the session, for the next call."""
    outcome: str
    """`ok`, `error`, `timeout`, `memory_limit` ..."""
    isolation: str
    truncated: bool
    state_lost: bool
    """Whether the variables of earlier calls are lost."""
    files: list[str]
    """Files that the code created or changed."""


class CommandOutput(BaseModel):
    """How a shell command ended."""

    session: str
    exit_code: int | None
    truncated: bool
    isolation: str


class ListedFile(BaseModel):
    """A file or folder."""

    path: str
    size: int
    folder: bool


class Files(BaseModel):
    """The files of a folder."""

    session: str
    files: list[ListedFile]
    truncated: bool


class Written(BaseModel):
    """A file that was written."""

    session: str
    path: str
    size: int


class ProcessState(BaseModel):
    """A process beside the cells; what it printed is the text content."""

    session: str
    process: str
    """Its number, for the next call."""
    command: str
    running: bool
    exit_code: int | None
    """128 and the signal, if one ended it."""


class ProcessList(BaseModel):
    """The processes of a session."""

    session: str
    processes: list[ProcessState]


class SessionHandle(BaseModel):
    """A session."""

    session: str


class Mark(BaseModel):
    """A checkpoint of a session."""

    session: str
    mark: str


class SessionList(BaseModel):
    """The open sessions, oldest first."""

    sessions: list[str]


class OpenText(BaseModel):
    """A text that is open for searches."""

    name: str
    characters: int
    lines: int


class Match(BaseModel):
    """A line that matches."""

    line: int
    start: int
    """The offset of the line's first character."""
    text: str


class Matches(BaseModel):
    """The lines that match a pattern."""

    matches: list[Match]
    total: int
    complete: bool
    """Whether all matches were counted."""

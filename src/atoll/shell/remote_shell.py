"""Sends requests of any size to a foreign shell, and receives answers of any size, by commands.

A request that is too long for one command is uploaded in pieces to a temporary file; an answer
that is too long for one output is downloaded in pieces. Random marks enclose answers, so that other
output cannot be mistaken for one.

SECURITY: no value of a caller becomes part of a script. Names, patterns and contents are passed as
base64 words, which a script decodes into variables.
"""

from __future__ import annotations

import base64
import contextlib
import re
import secrets
import shlex
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from atoll.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.types import ExecuteResponse

    Execute = Callable[[str], Awaitable[ExecuteResponse]]

MAX_COMMAND = 96_000
"""Bytes: the kernel takes 128 KiB as one argument, and a sandbox may quote it once more."""
ROOM_FOR_SCRIPT = 8_000
SMALLEST, FIRST, LARGEST = 1_500, 48_000, 600_000
"""Bytes of an answer in one output: the least that a sandbox must support, and the first try."""
MAX_ANSWER = 128 << 20
MAX_FILE = 90 << 20
"""Most bytes of a file that is read at once: base64 of it fits into an answer."""
_SIZE = re.compile(r"(\d{1,15})\s", re.ASCII)
_UP = (MAX_COMMAND - ROOM_FOR_SCRIPT) // 4 * 3


@cache
def script(*names: str) -> str:
    """Return the text of some scripts, joined."""
    folder = files("atoll.shell") / "scripts"
    return "".join((folder / f"{name}.sh").read_text() for name in names)


def command(text: str, *words: str) -> str:
    """Return a command that runs a script with its arguments in a subshell of any POSIX shell."""
    return " ".join(["sh -c", shlex.quote(text), "sh", *map(shlex.quote, words)])


def encoded(value: str | bytes) -> str:
    """Return text or bytes as a base64 word."""
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return base64.b64encode(data).decode("ascii")


class AnswerTooLargeError(SandboxError):
    """The answer of a foreign sandbox is too large."""


class RemoteShell:
    """Runs Atoll's scripts in a sandbox that can only run commands."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._piece, self._most = FIRST, LARGEST

    async def ask(
        self, name: str, *words: str, data: bytes = b"", twice: bool = True, draft: str = ""
    ) -> bytes:
        """Return a script's answer. `twice`: whether it may run again if its answer was cut.

        `draft` is the path beside which a killed script may have left a temporary file.
        """
        call = _Call(secrets.token_hex(16))
        try:
            inline = await self._hand_over(call, data, sum(map(len, words)))
            size, body = await self._run(call, name, words, inline, twice=twice)
            answer = body if body or not size else await self._collect(call, size)
        except BaseException:
            call.stored = True
            raise
        finally:
            if call.stored:
                with contextlib.suppress(Exception):
                    await self._execute(call.command("discard", encoded(draft) if draft else ""))
        return answer

    async def _hand_over(self, call: _Call, data: bytes, words: int) -> str:
        """Return the data as an argument; upload it to a file first if it is too long."""
        if len(data) <= _UP - words:
            return "." + encoded(data)
        call.stored = True
        for start in range(0, len(data), _UP):
            piece = data[start : start + _UP]
            response = await self._execute(call.command("append", data="." + encoded(piece)))
            size, _ = call.read(response) or (-1, b"")
            if size != start + len(piece):
                raise _failure(response)
        return ""

    async def _run(
        self, call: _Call, name: str, words: tuple[str, ...], inline: str, *, twice: bool
    ) -> tuple[int, bytes]:
        limit = self._piece if twice else SMALLEST
        while True:
            response = await self._execute(
                call.command(name, *words, limit=limit, data=inline, answers=True)
            )
            answer = call.read(response)
            if answer and answer[0] > MAX_ANSWER:
                raise AnswerTooLargeError(f"the answer has {answer[0]:,} bytes: ask for less")
            if answer:
                call.stored = answer[0] > limit
                return answer
            if not twice or not inline or not self._cut(call, response):
                raise _failure(response)
            limit = self._piece

    async def _collect(self, call: _Call, size: int) -> bytes:
        answer = bytearray()
        while len(answer) < size:
            count = min(self._piece, size - len(answer))
            response = await self._execute(call.command("piece", str(len(answer)), str(count)))
            answered = call.read(response)
            if answered and len(answered[1]) == count:
                answer += answered[1]
                self._piece = min(2 * self._piece, self._most)
            elif not self._cut(call, response):
                raise _failure(response)
        return bytes(answer)

    def _cut(self, call: _Call, response: ExecuteResponse) -> bool:
        """Return whether the sandbox cut the output; if so, later requests ask for less."""
        if self._piece <= SMALLEST or not (response.truncated or call.began(response)):
            return False
        self._piece = self._most = max(SMALLEST, self._piece // 2)
        return True


class _Call:
    """One request: the name of its temporary files, and the mark around its answers."""

    def __init__(self, token: str) -> None:
        self._token, self._mark = token, secrets.token_hex(16)
        self.stored = False
        """Whether it has temporary files."""

    def command(
        self, name: str, *words: str, limit: int = 0, data: str = "", answers: bool = False
    ) -> str:
        """Return a command that runs one script."""
        text = script("common", name, *(["run"] if answers else []))
        return command(text, self._mark, self._token, str(limit), data, *words)

    def read(self, response: ExecuteResponse) -> tuple[int, bytes] | None:
        """Return the size and the bytes between the marks; None if incomplete or missing."""
        check_shape(response)
        end = max(response.output.rfind(f"{self._mark}."), 0)
        start = response.output.rfind(f"{self._mark} ", 0, end)
        match = _SIZE.match(response.output, start + len(self._mark) + 1, end)
        if start < 0 or not match:
            return None
        size = int(match[1])
        try:
            words = response.output[match.end() : end].split()
            body = base64.b64decode("".join(words), validate=True)
        except ValueError:
            return None
        return (size, body) if len(body) in (0, size) else None

    def began(self, response: ExecuteResponse) -> bool:
        """Return whether the output has the start of an answer."""
        return f"{self._mark} " in response.output


def check_shape(response: ExecuteResponse) -> None:
    """Raise an error if a subclass's execute() returned something else than ExecuteResponse."""
    if not isinstance(getattr(response, "output", None), str):
        text = f"execute() of the sandbox gave {type(response).__name__}"
        raise SandboxError(f"{text}: it must be an ExecuteResponse with an output of str")


def _failure(response: ExecuteResponse) -> SandboxError:
    reason = response.error or f"exit code {response.exit_code}"
    seen = response.output.strip()[-300:]
    return SandboxError(f"the sandbox's shell gave no answer ({reason}): {seen!r}")

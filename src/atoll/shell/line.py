"""The way to a stranger's shell and back: requests and answers of any size, through commands.

A request that is too long for one command goes up in pieces, into a temporary file; an answer
that is too long for one output comes down in pieces. Answers stand between random marks, so that
nothing else that is printed can be taken for one.
"""

from __future__ import annotations

import base64
import contextlib
import re
import secrets
from typing import TYPE_CHECKING

from atoll.errors import SandboxError
from atoll.shell.commands import MAX_COMMAND, ROOM_FOR_SCRIPT, command, encoded, script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.types import ExecuteResponse

    Execute = Callable[[str], Awaitable[ExecuteResponse]]

SMALLEST, FIRST, LARGEST = 1_500, 48_000, 600_000
"""Bytes of an answer in one output: what every sandbox must let through, and what is tried."""
MAX_ANSWER = 128 << 20
MAX_FILE = 90 << 20
"""Bytes of a file that is read as a whole: an answer with it has room, encoded once more."""
_SIZE = re.compile(r"(\d{1,15})\s", re.ASCII)
_UP = (MAX_COMMAND - ROOM_FOR_SCRIPT) // 4 * 3


class AnswerTooLargeError(SandboxError):
    """More than we take from a stranger."""


class Line:
    """Runs scripts of ours in a sandbox that can only run commands."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._piece, self._most = FIRST, LARGEST

    async def ask(
        self, name: str, *words: str, data: bytes = b"", twice: bool = True, draft: str = ""
    ) -> bytes:
        """What a script answers. `twice`: whether it may run again if its answer was cut.

        `draft` is the path beside which the script may have left something if it was ended.
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
        """The data as a word; in a file beforehand if there is no room for that."""
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
            found = call.read(response)
            if found and found[0] > MAX_ANSWER:
                raise AnswerTooLargeError(f"the answer has {found[0]:,} bytes: ask for less")
            if found:
                call.stored = found[0] > limit
                return found
            if not twice or not inline or not self._cut(call, response):
                raise _failure(response)
            limit = self._piece

    async def _collect(self, call: _Call, size: int) -> bytes:
        answer = bytearray()
        while len(answer) < size:
            count = min(self._piece, size - len(answer))
            response = await self._execute(call.command("piece", str(len(answer)), str(count)))
            found = call.read(response)
            if found and len(found[1]) == count:
                answer += found[1]
                self._piece = min(2 * self._piece, self._most)
            elif not self._cut(call, response):
                raise _failure(response)
        return bytes(answer)

    def _cut(self, call: _Call, response: ExecuteResponse) -> bool:
        """Whether an output was too long for the sandbox; if so, less is asked for from now on."""
        if self._piece <= SMALLEST or not (response.truncated or call.began(response)):
            return False
        self._piece = self._most = max(SMALLEST, self._piece // 2)
        return True


class _Call:
    """One request: the name of its files, and the mark around its answers."""

    def __init__(self, token: str) -> None:
        self._token, self._mark = token, secrets.token_hex(16)
        self.stored = False
        """Whether files of it are there."""

    def command(
        self, name: str, *words: str, limit: int = 0, data: str = "", answers: bool = False
    ) -> str:
        """A command that runs one script."""
        text = script("common", name, *(["run"] if answers else []))
        return command(text, self._mark, self._token, str(limit), data, *words)

    def read(self, response: ExecuteResponse) -> tuple[int, bytes] | None:
        """The size and the bytes between the marks; none if they are not there, or not whole."""
        check_shape(response)
        end = max(response.output.rfind(f"{self._mark}."), 0)
        start = response.output.rfind(f"{self._mark} ", 0, end)
        found = _SIZE.match(response.output, start + len(self._mark) + 1, end)
        if start < 0 or not found:
            return None
        size = int(found[1])
        try:
            words = response.output[found.end() : end].split()
            body = base64.b64decode("".join(words), validate=True)
        except ValueError:
            return None
        return (size, body) if len(body) in (0, size) else None

    def began(self, response: ExecuteResponse) -> bool:
        """Whether there is the beginning of an answer."""
        return f"{self._mark} " in response.output


def check_shape(response: ExecuteResponse) -> None:
    """Whoever wrote the sandbox may have it give anything."""
    if not isinstance(getattr(response, "output", None), str):
        text = f"execute() of the sandbox gave {type(response).__name__}"
        raise SandboxError(f"{text}: it must be an ExecuteResponse with an output of str")


def _failure(response: ExecuteResponse) -> SandboxError:
    reason = response.error or f"exit code {response.exit_code}"
    seen = response.output.strip()[-300:]
    return SandboxError(f"the sandbox's shell gave no answer ({reason}): {seen!r}")

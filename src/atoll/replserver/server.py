"""The server's loop: reports ready, then answers frame by frame until the client has gone."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

from atoll.errors import ConfigError, StateError
from atoll.replserver import framing, messages
from atoll.replserver.framing import Pipes
from atoll.replserver.messages import REPLRequest, REPLResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.replserver.runner import Runner


class Server:
    """Answers requests one after the other.

    SECURITY: the output of guest code reaches the client only inside the JSON of a frame: no guest
    has a descriptor of this process.
    """

    def __init__(self, runner: Runner, pipes: Pipes, trace: Trace) -> None:
        self._runner, self._pipes, self._trace = runner, pipes, trace
        self._gone = False

    async def serve(self) -> None:
        """Serve until the requests end or the reader closes the pipe; destroys every sandbox."""
        task = asyncio.current_task()
        assert task is not None
        self._pipes.on_hangup(lambda: self._leave(task))
        try:
            await self._runner.warm_up()
            await self._pipes.write(framing.READY + b"\n")
            await self._answer_all()
        except BrokenPipeError:
            self._gone = True
        except asyncio.CancelledError:
            if not self._gone:
                raise
        finally:
            self._pipes.close()

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._gone = True
        task.cancel()

    async def _answer_all(self) -> None:
        parser = framing.FrameParser("REQUEST")
        while data := await self._pipes.read():
            for event in parser.feed(data):
                if isinstance(event, framing.Noise):
                    self._trace.noise(event.text)
                else:
                    await self._answer(event)

    async def _answer(self, event: framing.Frame | framing.BrokenFrame) -> None:
        response = await self._respond(event)
        frame = framing.encode("RESPONSE", response.as_json())
        self._trace.response(response, frame)
        await self._pipes.write(frame)

    async def _respond(self, event: framing.Frame | framing.BrokenFrame) -> REPLResponse:
        if isinstance(event, framing.BrokenFrame):
            return REPLResponse.nothing_ran(messages.REFUSED, f"bad request: {event.reason}")
        try:
            request = REPLRequest.from_json(event.text)
        except ConfigError as exc:
            return REPLResponse.nothing_ran(messages.REFUSED, f"bad request: {exc}")
        except StateError as exc:
            error = f"State restoration failed: {exc}"
            return REPLResponse.nothing_ran(messages.BAD_STATE, error)
        self._trace.request(request)
        return await self._runner.run(request)


def take_stdio() -> Pipes:
    """Return this process's stdin and stdout as private pipes.

    Other output of this process goes to stderr, and children do not inherit the pipes.
    """
    own = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return Pipes(*own)


class Trace:
    """Numbers and logs requests; lines outside of frames are always logged: they are mistakes."""

    def __init__(
        self, say: Callable[[str], None], *, debug: bool = False, contents: bool = False
    ) -> None:
        self._say, self._debug, self._contents = say, debug or contents, contents
        self._number = 0

    def noise(self, text: bytes) -> None:
        """Log a line that is in no frame."""
        self._say(f"ignored a line outside of a frame: {text!r}")

    def request(self, request: REPLRequest) -> None:
        """Log a request before it runs."""
        self._number += 1
        if self._debug:
            self._say(
                f"request {self._number}: code {len(request.code):,} characters, "
                f"state {len(request.state or b''):,} bytes, capture_state {request.capture_state}"
            )
        if self._contents:
            self._say(f"request {self._number} is {json.dumps(request.as_json())}")

    def response(self, response: REPLResponse, frame: bytes) -> None:
        """Log a response before it is sent."""
        if self._debug:
            self._say(
                f"response {self._number}: {response.kind}, exit code {response.exit_code}, "
                f"{len(frame):,} bytes, {response.duration_ms:.1f} ms"
            )
        if self._contents:
            self._say(f"response {self._number} is {json.dumps(response.as_json())}")

"""The server's loop: reports ready, then answers frame by frame until the client has gone."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from atoll.errors import ConfigError, StateError
from atoll.replserver import framing, messages
from atoll.replserver.messages import REPLRequest, REPLResponse
from atoll.replserver.pipes import Pipes

if TYPE_CHECKING:
    from atoll.replserver.runner import Runner
    from atoll.replserver.trace import Trace


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

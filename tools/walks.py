"""Count how far four pieces of work walk through Atoll: functions, files, and switches of files.

    .venv/bin/python tools/walks.py            # the table
    .venv/bin/python tools/walks.py native     # one walk: its functions in the order of first calls

A walk is counted in all threads of this process; guests are other processes. The work was done
before, so that nothing is imported or opened for the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import atoll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Work = Callable[[], object]

# ruff: noqa: PLC0415 - each walk imports its own part
ROOT = f"{Path(atoll.__file__).parent}/"
LOG = "".join(f"entry {number}: value {number * number}\n" for number in range(400))
TURNS = ("```python\nprint(len(context))\n```", "```python\nFINAL('done')\n```")


class Counts(NamedTuple):
    """The size of a walk."""

    functions: int
    files: int
    switches: int


class Walk:
    """Every function of Atoll that ran, in the order of the first calls."""

    def __init__(self) -> None:
        self.order: dict[tuple[str, str], None] = {}

    def note(self, frame: FrameType, event: str, _arg: object) -> None:
        """Take note of a call; this is a profiler's function."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and code.co_name != "<module>":
            self.order[code.co_filename[len(ROOT) :], code.co_qualname] = None

    @property
    def counts(self) -> Counts:
        """The number of functions, of files, and of first calls into another file."""
        files = [file for file, _ in self.order]
        switches = sum(file != after for file, after in itertools.pairwise(files))
        return Counts(len(files), len(set(files)), switches)


@contextlib.contextmanager
def native() -> Iterator[Work]:
    """Yield a cell of the native backend, blocking."""
    with atoll.create_sandbox(backend="native") as box:
        yield lambda: box.execute("1+1")


@contextlib.contextmanager
def daemon() -> Iterator[Work]:
    """Yield a cell of a daemon that this process serves, too: both ends are counted."""
    from atoll.daemon.paths import DaemonPaths
    from atoll.daemon.server import DaemonServer
    from atoll.hosting.pool import Pool
    from atoll.hosting.sessions import Storage
    from atoll.state.store import SqliteStateStore

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        place, pool = DaemonPaths(Path(folder) / "walk.sock"), Pool()
        store = SqliteStateStore(place.states)
        server = DaemonServer(pool.open, Storage(store=store))
        call(server.start(place.listen()))
        os.environ["ATOLL_DAEMON_SOCKET"] = str(place.socket)
        with atoll.create_sandbox(backend="daemon") as box:
            yield lambda: box.execute("1+1")
        del os.environ["ATOLL_DAEMON_SOCKET"]
        call(server.stop())
        call(pool.close())
        store.close_all()
    loop.call_soon_threadsafe(loop.stop)


@contextlib.contextmanager
def run() -> Iterator[Work]:
    """Yield a POST /run, whose code ends at once."""
    from atoll.service.core.service import Service
    from atoll.service.http.app import App
    from atoll.service.settings import ServiceSettings

    async def runner(*_args: object, **_options: object) -> atoll.SandboxResult:
        return atoll.SandboxResult(kind=atoll.Outcome.OK, value=2, value_repr="2")

    async def opener(*_args: object) -> Any:
        raise NotImplementedError

    async def post(app: App, key: str) -> None:
        body = b'{"code": "1+1"}'
        head = {
            "host": "127.0.0.1",
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/run",
            "query_string": b"",
            "headers": [(name.encode(), text.encode()) for name, text in head.items()],
            "client": ("127.0.0.1", 1),
        }
        parts, sent = [body], []

        async def receive() -> Any:
            if not parts:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": parts.pop()}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        if sent[0]["status"] != 200:
            raise RuntimeError(f"POST /run failed: {sent}")

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as loop:
        settings = ServiceSettings(folder=Path(folder), port=0)

        async def made() -> Service:
            return Service(settings, opener, runner=runner)

        service = loop.run(made())
        app, key = App(service), service.keys.add()
        yield lambda: loop.run(post(app, key))
        loop.run(service.stop())


@contextlib.contextmanager
def question() -> Iterator[Work]:
    """Yield a question that a scripted model answers in two turns."""
    from atoll.agent.rlm.blocking import RLM
    from atoll.agent.rlm.models.scripted import ScriptedModel

    def ask() -> object:
        rlm = RLM(ScriptedModel(TURNS), backend="native", direct_tokens=1)
        return rlm.completion("What is it?", LOG)

    yield ask


WALKS = {"native": (native, 5), "daemon": (daemon, 5), "run": (run, 5), "question": (question, 1)}
"""The walks, and how often each is done before it is counted."""


def measure(name: str) -> Walk:
    """Return the walk of that name."""
    walk, (opened, times) = Walk(), WALKS[name]
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        with opened() as work:
            for _ in range(times):
                work()
            walk.order.clear()
            work()
            sys.setprofile(None)
            order = dict(walk.order)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    walk.order = order
    return walk


def main() -> None:
    """Print the table, or one walk."""
    if names := sys.argv[1:]:
        for file, function in measure(names[0]).order:
            print(f"{file:50} {function}")
        return
    print("| walk | functions | files | switches |\n| --- | --- | --- | --- |")
    for name in WALKS:
        print("|", " | ".join(map(str, (name, *measure(name).counts))), "|")


if __name__ == "__main__":
    main()

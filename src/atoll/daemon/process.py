"""The daemon's process: takes the lock, serves until SIGTERM, and removes its socket."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.daemon.paths import DaemonPaths
from atoll.daemon.server import DaemonServer
from atoll.errors import AtollError, SandboxError
from atoll.hosting import heap
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.pool import Pool, PoolSettings
from atoll.hosting.sessions import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import TextIOWrapper

LOG_BYTES = 1 << 20
READY = "ready"
WARM_SECONDS = 600.0
"""What importing the libraries may take on a slow machine, before sandboxes start cold instead."""
_LOG = logging.getLogger("atoll.daemon")


async def serve(
    paths: DaemonPaths,
    limits: DaemonLimits,
    on_ready: Callable[[], None],
    settings: PoolSettings | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> None:
    """Serve at these paths until SIGTERM or SIGINT; `on_progress` hears how it starts."""

    def report(text: str) -> None:
        _LOG.info("%s", text)
        on_progress(text)

    settings = dataclasses.replace(settings or PoolSettings(), warm_seconds=WARM_SECONDS)
    paths.prepare()
    lock = paths.claim()
    try:
        with logging_to(paths.log, _LOG):
            async with Pool(settings) as pool:
                await _serve(paths, limits, on_ready, pool, report)
    finally:
        paths.remove_socket()
        os.close(lock)


async def _serve(
    paths: DaemonPaths,
    limits: DaemonLimits,
    on_ready: Callable[[], None],
    pool: Pool,
    report: Callable[[str], None],
) -> None:
    _allow_descriptors()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    storage, store = open_storage(paths.states, limits)
    server = DaemonServer(pool.open, storage, limits, pool.stats)
    report("importing the libraries that warm sandboxes have")
    await _warm_up(pool)
    report("trying out a sandbox")
    await server.start(paths.listen())
    _LOG.info("started with pid %d", os.getpid())
    heap.collect_rarely()
    heap.give_back()
    on_ready()
    await stop.wait()
    paths.remove_socket()
    _LOG.info("stopped; %d sessions ended with it", await server.stop())
    store.close_all()


async def _warm_up(pool: Pool) -> None:
    """Have the zygote of sessions before the first one comes, so that all find the same names."""
    try:
        if pool.usable:
            await pool.warm()
    except SandboxError as exc:
        _LOG.warning("no warm start: %s", exc)
    for tier, facts in pool.stats().items():
        if facts["warm_seconds"] is not None:
            _LOG.info("tier %s is warm after %.1f s", tier, facts["warm_seconds"])
        for missing in facts["missing"]:
            _LOG.warning("tier %s has no %s", tier, missing)


def _allow_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _PrivateFile(logging.FileHandler):
    """A log that only its user may read; beyond LOG_BYTES it is renamed and begun anew.

    The standard library's own needs modules that take 400 KB, among them pickle.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().emit(record)
        try:
            if self.stream is not None and self.stream.tell() > LOG_BYTES:
                os.replace(self.baseFilename, f"{self.baseFilename}.1")
                self.stream.close()
                self.stream = self._open()
        except OSError:
            self.handleError(record)

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", opener=private)


@contextlib.contextmanager
def logging_to(path: Path, log: logging.Logger) -> Iterator[None]:
    """Write a log to a file. SECURITY: it holds no code, no output, no variable and no token."""
    handler = _PrivateFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


def main() -> int:
    """`python -m atoll.daemon.process SOCKET LIMITS PRELOAD TIER`: what `daemon start` starts."""
    os.chdir("/")
    try:
        paths, limits = DaemonPaths(Path(sys.argv[1])), DaemonLimits(**json.loads(sys.argv[2]))
        settings = PoolSettings.with_more(json.loads(sys.argv[3]), tier=sys.argv[4] or None)
        asyncio.run(serve(paths, limits, say_ready, settings, say_progress))
    except (AtollError, OSError) as exc:
        print(exc, file=sys.stderr)  # noqa: T201 - whoever starts us reads it
        return 1
    return 0


def say_progress(text: str) -> None:
    """Report to the process that started the daemon, if it still listens."""
    with contextlib.suppress(OSError):
        os.write(1, text.encode() + b"\n")


def say_ready() -> None:
    """Report to the process that started the daemon, and close its pipes."""
    say_progress(READY)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())

"""The driver's process: joins the fleet, serves at its socket, ends if no client is left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.daemon.paths import DaemonPaths
from atoll.daemon.process import logging_to, say_progress, say_ready
from atoll.errors import AtollError
from atoll.fleet import driver as drivers
from atoll.fleet.garbage import collect_rarely
from atoll.fleet.store import Store

if TYPE_CHECKING:
    from atoll.fleet.settings import FleetSettings

IDLE_SECONDS = 600.0
"""After which a driver without a client ends; the next client starts another one."""


async def serve(paths: DaemonPaths, settings: FleetSettings) -> None:
    """Serve until SIGTERM, or until no client has been there for IDLE_SECONDS."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    driver = drivers.Driver(settings, Store(settings.store))
    say_progress("waiting for a node")
    await driver.start(paths.listen)
    collect_rarely()
    say_ready()
    while not stop.is_set() and driver.idle_seconds < IDLE_SECONDS:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
    paths.remove_socket()
    await driver.stop()


def main() -> int:
    """`python -m atoll.fleet.process SOCKET ADDRESS`: what a fleet's first client starts."""
    os.chdir("/")
    paths = DaemonPaths(Path(sys.argv[1]))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        paths.prepare()
        lock = paths.claim()
        with logging_to(paths.log, logging.getLogger("atoll.fleet")):
            say_progress("joining the fleet")
            settings = drivers.connect(sys.argv[2])
            asyncio.run(serve(paths, settings))
    except (AtollError, OSError) as exc:
        print(exc, file=sys.stderr)  # noqa: T201 - the process that starts it reads this
        return 1
    finally:
        paths.remove_socket()
    os.close(lock)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of Ray would keep an ended driver alive

"""The driver of a fleet on this machine: found, or started, by the first process that needs it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from atoll.backends.daemon import connection as connections
from atoll.config import fleet_socket
from atoll.daemon import lifecycle as daemons
from atoll.daemon.paths import AlreadyRunningError, DaemonPaths
from atoll.errors import BackendUnavailableError, FleetError, SandboxStartError
from atoll.fleet import cluster

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.backends.daemon.connection import DaemonConnection

START_SECONDS = 150.0
ANSWER_SECONDS = 10.0
"""What a driver may take to answer: it shares its machine with those who ask it."""
ATTEMPTS = 3
DYING_SECONDS = 1.0
"""What the kernel may take to end a driver that was killed."""
_PAUSE_SECONDS = 0.05


async def ensure(address: str) -> Path:
    """Return the socket of this user's driver for a fleet; FleetError if it cannot be started."""
    paths = DaemonPaths(fleet_socket(address))
    if not paths.claimed() or not os.access(paths.socket, os.F_OK):  # or a dead driver's is left
        await asyncio.to_thread(start, address)
    return paths.socket


async def connection(address: str) -> DaemonConnection:
    """Return a connection to the driver; a driver that was ending is replaced."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await connections.shared(await ensure(address))
        except BackendUnavailableError as exc:
            if attempt == ATTEMPTS:
                raise FleetError(f"the fleet's driver cannot be used: {exc.reason}") from None
            await asyncio.sleep(DYING_SECONDS)
    raise AssertionError("the last attempt returns or raises")


async def ask(address: str) -> dict[str, Any]:
    """Return what the driver says of the fleet; FleetError if it says nothing in time."""
    used = await connection(address)
    name = used.hold()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return dict((await used.peer.call("stats", {})).value)
    except TimeoutError:
        raise FleetError(
            f"the driver of the fleet at {address} has not answered for {ANSWER_SECONDS:g} s"
        ) from None
    finally:
        used.let_go(name)


def start(address: str) -> None:
    """Start a driver, unless one runs; return once it serves.

    Raise BackendUnavailableError if the running driver ends instead: another can be started then.
    """
    cluster.check_listening(address)
    paths = DaemonPaths(fleet_socket(address))
    paths.prepare()
    try:
        daemons.spawn(paths, ["-m", "atoll.fleet.driver", str(paths.socket), address])
    except AlreadyRunningError:
        if not _serves(paths):
            reason = f"another one ended while it was waited for: see {paths.log}"
            raise BackendUnavailableError("ray", reason) from None
    except SandboxStartError as exc:
        raise FleetError(exc.reason.splitlines()[-1]) from None  # Ray warns before it


def _serves(paths: DaemonPaths) -> bool:
    """Wait for a driver that another process has started; return False if it ends instead."""
    end = time.monotonic() + START_SECONDS
    while paths.claimed() and time.monotonic() < end:
        if paths.socket.exists():
            return True
        time.sleep(_PAUSE_SECONDS)
    return False

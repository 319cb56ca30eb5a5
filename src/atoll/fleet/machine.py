"""One machine of a fleet: its processes of Ray, which listen on one address alone.

`python -m atoll.fleet.machine start ...` is Ray's own command, kept to the address it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from atoll.errors import ConfigError, FleetError
from atoll.fleet import cluster
from atoll.fleet.settings import mark_prefix
from atoll.fleet.store import Store
from atoll.policy import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.fleet.settings import FleetSettings

START_SECONDS = 120.0
ATTEMPTS = 3
STARTED = b"Ray runtime started"
OBJECT_STORE = 80 * MIB
"""About the least that Ray starts with: nothing is put there."""
_PAUSE_SECONDS = 0.1
_AGENT_PORTS = (
    "--dashboard-agent-grpc-port",
    "--dashboard-agent-listen-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
)
"""Ray ends a node whose agents do not choose ports within 15 s; it need not wait for given ones."""
_BIND_OPTION = "--node-ip-address="
_SLOW_MACHINE = {"RAY_raylet_start_wait_time_s": "50"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The options of `ray start`. `head` is None on the head, else the address of the head."""

    bind: str = "127.0.0.1"
    port: int = 6379
    head: str | None = None
    name: str | None = None
    takes_sessions: bool = True
    folder: str | None = None
    """Where Ray keeps logs and sockets; each machine needs one of its own."""

    def __post_init__(self) -> None:
        if self.bind in ("0.0.0.0", "::"):  # noqa: S104 - refused
            raise ConfigError(
                f"{self.bind} would let everybody run code here: Ray trusts its network. Name one "
                "address of a private network with --bind"
            )

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return self.head or f"{self.bind}:{self.port}"

    def command(self) -> list[str]:
        """Return the command; it stays in the foreground."""
        where = (
            ["--head", f"--port={self.port}"] if self.head is None else [f"--address={self.head}"]
        )
        more = [f"--node-name={self.name}"] if self.name else []
        more += [f"--temp-dir={self.folder}"] if self.folder else []
        more += ["--include-dashboard=false"] if self.head is None else []
        resources = f'{{"{cluster.RESOURCE}": 1}}' if self.takes_sessions else "{}"
        return [
            *(sys.executable, "-m", __name__, "start", *where, *more, "--block"),
            f"{_BIND_OPTION}{self.bind}",
            *("--num-cpus=0", "--disable-usage-stats", f"--resources={resources}"),
            f"--object-store-memory={OBJECT_STORE}",
            *(f"{option}={_free_port(self.bind)}" for option in _AGENT_PORTS),
        ]

    def environment(self) -> dict[str, str]:
        """Return the variables that Ray's processes, and the node's actor, get."""
        return {**cluster.ENVIRONMENT, **_SLOW_MACHINE, **os.environ}


@contextlib.contextmanager
def running(
    machine: Machine, settings: FleetSettings | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a machine's processes until the end of the block; yield the one above them.

    A head is given the fleet's settings, and writes them where nodes and drivers find them.
    """
    cluster.library(machine.address)
    if machine.head is not None:
        cluster.check_listening(machine.head)
    elif _listens(machine.address):
        raise FleetError(f"something listens at {machine.address} already: choose another --port")
    process = _start(machine)
    try:
        if settings is not None:
            publish(machine.address, settings)
        yield process
    finally:
        _stop(process)


def _start(machine: Machine) -> subprocess.Popen[bytes]:
    """Return the process above Ray's processes, once they run. A busy machine may need two tries.

    Ray ends a node whose helpers take more than 15 s to start.
    """
    for attempt in range(1, ATTEMPTS + 1):
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                machine.command(),
                env=machine.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            if _runs(process, log):
                return process
            _stop(process)
            if attempt == ATTEMPTS:
                raise FleetError(f"Ray could not be started: {_last_line(log)}")
    raise AssertionError("the last attempt returns or raises")


def _runs(process: subprocess.Popen[bytes], log: IO[bytes]) -> bool:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if STARTED in os.pread(log.fileno(), 1 << 20, 0):
            return True
        time.sleep(_PAUSE_SECONDS)
    return False


def publish(address: str, settings: FleetSettings) -> None:
    """Write a fleet's settings into its cluster, from a process of its own."""
    code = (
        "import sys; from atoll.fleet import cluster, settings;"
        "cluster.write_settings(sys.argv[1], settings.FleetSettings.from_json(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, address, settings.to_json()]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        raise FleetError(
            f"the head at {address} took no settings in {START_SECONDS:.0f} s"
        ) from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it ended"]
        raise FleetError(f"the fleet's settings could not be written: {lines[-1]}")


async def claim_store(settings: FleetSettings, *, adopt: bool) -> None:
    """Raise FleetError unless the store can fence, and belongs to no other fleet."""
    store = Store(settings.store)
    try:
        await store.try_out()
        await mark_prefix(store, settings, adopt=adopt)
    finally:
        store.close()


def sleep_until_stopped() -> None:
    """Block until SIGTERM or SIGINT."""
    asyncio.run(_until_stopped())


async def _until_stopped() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as sock:
        return int(sock.getsockname()[1])


def _listens(address: str) -> bool:
    try:
        cluster.check_listening(address, 1.0)
    except FleetError:
        return False
    return True


def _last_line(log: IO[bytes]) -> str:
    lines = os.pread(log.fileno(), 1 << 20, 0).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End Ray's processes: they are one process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """Run Ray's command line."""
    given = [arg for arg in sys.argv if arg.startswith(_BIND_OPTION)]
    bind = given[0].removeprefix(_BIND_OPTION) if given else ""
    cluster.library(f"{bind}:0")
    from ray.scripts.scripts import main as ray_main  # noqa: PLC0415

    ray_main()


if __name__ == "__main__":
    main()

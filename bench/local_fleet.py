"""A fleet on this machine, for tests and benchmarks; each node has a pid namespace of its own.

    python -m bench.local_fleet run COMMAND ...     run a command beside a fleet of two nodes

A kill of a node's first process is a power cut: Ray's processes, the actor and the jails go.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from atoll.daemon import lifecycle as daemons
from atoll.daemon.paths import DaemonPaths
from atoll.fleet import machine
from atoll.fleet.machine import Machine
from atoll.fleet.settings import FleetSettings

PATIENCE_SECONDS = 180


class LocalFleet:
    """A head without sessions, and nodes that can be killed, frozen and thawed."""

    def __init__(
        self,
        folder: Path,
        port: int,
        store: str | None = None,
        network: Network | None = None,
        **settings: Any,
    ) -> None:
        self.folder, self.port = folder, port
        self.network = network
        self._host = "127.0.0.1" if network is None else network.host
        self.settings = FleetSettings(
            store=store or str(folder / "store"), **{"tier": "bare", **settings}
        )
        self.address = f"{self._host}:{port}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()
        (folder / "sock").mkdir(mode=0o700, exist_ok=True)

    def start(self, *names: str) -> str:
        """Start the head and these nodes; return the head's address."""
        # Ray's sockets lie below this folder, and their paths may be 107 bytes long
        head = Machine(
            bind=self._host,
            port=self.port,
            takes_sessions=False,
            folder=self._ray_folder(),
        )
        self.head = self._stack.enter_context(machine.running(head, self.settings))
        for name in names:
            self.add(name)
        return self.address

    def add(self, name: str) -> None:
        """Start one more node; return once it has joined."""
        for attempt in range(1, machine.ATTEMPTS + 1):
            command = [
                sys.executable,
                __file__,
                "node",
                self.address,
                name,
                self._ray_folder(),
                *(() if self.network is None else (self.network.address(name),)),
            ]
            unshare = ["unshare", "--fork", "--pid", "--kill-child", "--mount-proc", *command]
            if self.network is not None:
                unshare = [*self.network.enter(name), *unshare]
            log = self.folder / f"{name}-{attempt}-{time.time_ns()}.log"
            with log.open("ab") as file:
                process = subprocess.Popen(
                    unshare, stdout=file, stderr=file, start_new_session=True
                )
            self.nodes[name] = process
            end = time.monotonic() + machine.START_SECONDS
            while process.poll() is None and time.monotonic() < end:
                if machine.STARTED in log.read_bytes():
                    return
                time.sleep(0.05)
            self.kill(name)
        raise AssertionError(f"the node {name} did not start: {log.read_text()[-500:]}")

    def kill(self, name: str) -> None:
        """Kill all processes of a node with SIGKILL."""
        process = self.nodes.pop(name)
        for child in children(process.pid):  # pid 1 of its namespace
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()

    def send(self, name: str, number: signal.Signals) -> list[int]:
        """Send a signal to every process of a node: SIGSTOP freezes it, SIGCONT thaws it."""
        pids = family(self.nodes[name].pid)
        for pid in pids if number == signal.SIGSTOP else reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    @property
    def driver(self) -> DaemonPaths:
        """The driver's socket and log."""
        return DaemonPaths(self.folder / "sock" / f"fleet-{self._host}-{self.port}.sock")

    def environment(self) -> dict[str, str]:
        """Return the environment variables that connect the `ray` backend to this fleet."""
        return {"ATOLL_FLEET": self.address, "ATOLL_FLEET_FOLDER": str(self.folder / "sock")}

    def stop(self) -> None:
        """End everything."""
        with contextlib.suppress(Exception):
            daemons.stop(self.driver)
        for name in list(self.nodes):
            self.kill(name)
        self._stack.close()

    def kill_head(self) -> None:
        """Kill the head's processes with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.head.pid, signal.SIGKILL)
        self._stack.close()

    def replace_head(self, *names: str) -> None:
        """Start a new head with new nodes at the address of one that was killed, on its store."""
        for name in list(self.nodes):
            self.kill(name)
        self.settings = dataclasses.replace(self.settings, ident=secrets.token_hex(8), key_check="")
        asyncio.run(machine.claim_store(self.settings, adopt=True))
        self.start(*names)

    def _ray_folder(self) -> str:
        made = tempfile.mkdtemp(prefix="ar", dir="/tmp")
        self._stack.callback(subprocess.run, ["rm", "-rf", made], check=False)
        return made


class Network:
    """A network of this machine alone: each node has a namespace and a cable, which can be cut.

    The store is a folder, which a node reaches all the same: it has to refuse what such a node
    writes.
    """

    def __init__(self) -> None:
        self._subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._stem = f"atl{os.getpid() % 100_000}"
        self._numbers: dict[str, int] = {}
        self.host = f"{self._subnet}.1"

    def __enter__(self) -> Self:
        """Make the switch that the cables end at."""
        _ip("link", "add", self._stem, "type", "bridge")
        _ip("addr", "add", f"{self.host}/24", "dev", self._stem)
        _ip("link", "set", self._stem, "up")
        return self

    def __exit__(self, *_exc: object) -> None:
        """Remove everything."""
        for name in self._numbers:
            _ip("netns", "del", self._name(name))  # its cable goes with it
        _ip("link", "del", self._stem)

    def address(self, name: str) -> str:
        """Return the address of a node, which is given a namespace and a cable at first."""
        if name not in self._numbers:
            self._numbers[name] = number = len(self._numbers) + 2
            space, inside = self._name(name), ["-n", self._name(name)]
            _ip("netns", "add", space)
            _ip("link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", space, "master", self._stem, "up")
            _ip(*inside, "addr", "add", f"{self._subnet}.{number}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "link", "set", "lo", "up")
        return f"{self._subnet}.{self._numbers[name]}"

    def enter(self, name: str) -> list[str]:
        """Return the words before a command that is to run in a node's namespace."""
        return ["ip", "netns", "exec", self._name(name)]

    def cut(self, name: str) -> None:
        """Drop every packet in both directions without an answer, as an unplugged cable does."""
        _ip("link", "set", self._name(name), "down")

    def join(self, name: str) -> None:
        """Mend the cable."""
        _ip("link", "set", self._name(name), "up")

    def _name(self, node: str) -> str:
        return f"{self._stem}{node}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def free_port() -> int:
    """Return a free port of the loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def family(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for task in _tasks(one):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{one}/task/{task}/children").read_text()
                found += [int(child) for child in text.split() if int(child) not in found]
    return found


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def until(check: Any, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until `check` returns a true value, and return it."""
    end = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.05)
    return found


def _run_node(address: str, name: str, folder: str, bind: str = "127.0.0.1") -> None:
    one = Machine(head=address, name=name, folder=folder, bind=bind)
    os.execve(one.command()[0], one.command(), one.environment())


def _run_with_fleet(command: list[str]) -> int:
    """Run a command beside a fleet of two nodes, which its environment leads to."""
    os.environ["ATOLL_STATE_KEY"] = "a key for the tests alone"
    with tempfile.TemporaryDirectory(prefix="atoll-fleet-") as folder:
        fleet = LocalFleet(Path(folder), free_port(), tier="numeric")
        try:
            fleet.start("a", "b")
            return subprocess.call(command, env={**os.environ, **fleet.environment()})
        finally:
            fleet.stop()


if __name__ == "__main__":
    if sys.argv[1] == "node":
        _run_node(*sys.argv[2:])
    sys.exit(_run_with_fleet(sys.argv[2:]))

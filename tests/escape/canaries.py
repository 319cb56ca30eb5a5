"""Things outside the sandbox that no guest may reach; each tells of itself with PWNED."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

MARK = "PWNED"
SECRET = f"{MARK}-ZYGOTE-SECRET"
WORKDIR = "/app"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """What is planted in and around this process."""

    file: Path
    variable: str
    port: int
    abstract: str
    outside: Path

    def fill(self, code: str) -> str:
        """The code with the placeholders replaced by where the canaries are."""
        places = {
            "@@CANARY_PATH@@": str(self.file),
            "@@CANARY_ENV@@": self.variable,
            "@@HOST_PORT@@": str(self.port),
            "@@ABSTRACT@@": self.abstract,
            "@@OUTSIDE_DIR@@": str(self.outside),
            "@@WORKDIR@@": WORKDIR,
        }
        for name, value in places.items():
            code = code.replace(name, value)
        return code

    def outside_listing(self) -> dict[str, bytes]:
        """Every file outside with its content."""
        files = (path for path in self.outside.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}


@functools.cache
def planted() -> Canaries:
    """The canaries of this process, planted on first use and gone with it."""
    token = secrets.token_hex(4)
    folder = Path(tempfile.mkdtemp(prefix="canary-"))
    folder.chmod(0o755)  # only the sandbox is to stand between a guest and this
    variable = f"CANARY_{token.upper()}"
    os.environ[variable] = f"{SECRET}-{token}"
    _start_decoy()
    found = Canaries(
        file=_write(folder / "secret.txt", f"{SECRET}-{token}\n"),
        variable=variable,
        port=_serve_loopback(),
        abstract=_serve_abstract(f"canary-{token}"),
        outside=_outside(folder / "outside"),
    )
    _leave_open(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return found


def _start_decoy() -> None:
    """A process of the host that has the variable in its environment from its start."""
    decoy = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    atexit.register(decoy.communicate)  # the end of its input is its end


def _leave_open(folder: Path) -> None:
    """Descriptors that a careless start of a child would hand on."""
    os.set_inheritable(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), True)
    os.set_inheritable(socket.socket(socket.AF_UNIX).detach(), True)


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def _outside(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o777)
    _write(folder / "kept.txt", "as it was\n")
    return folder


def _serve_loopback() -> int:
    """One port on both loopback addresses, TCP and UDP."""
    server = socket.create_server(("127.0.0.1", 0))
    port = int(server.getsockname()[1])
    _answer_all(server)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", port))
    threading.Thread(target=_echo_mark, args=(datagrams,), daemon=True).start()
    if socket.has_ipv6:
        with contextlib.suppress(OSError):  # a host without IPv6 has nothing to reach there
            _answer_all(socket.create_server(("::1", port), family=socket.AF_INET6))
    return port


def _serve_abstract(name: str) -> str:
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0" + name)
    server.listen()
    _answer_all(server)
    return name


def _answer_all(server: socket.socket) -> None:
    threading.Thread(target=_send_mark, args=(server,), daemon=True).start()


def _send_mark(server: socket.socket) -> None:
    while True:
        peer, _ = server.accept()
        with peer, contextlib.suppress(OSError):  # a guest that was refused may be gone already
            peer.sendall(f"{MARK} reached the host".encode())


def _echo_mark(datagrams: socket.socket) -> None:
    while True:
        _, sender = datagrams.recvfrom(2048)
        datagrams.sendto(f"{MARK} reached the host".encode(), sender)

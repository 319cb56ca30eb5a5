"""What a reader might do that a hostile file has taken over; each way is tried from inside one."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import mmap
import os
import platform
import random
import resource
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from archivekit import make_pdf, make_zip

from atoll.agent.archive import confined, open_archive
from atoll.agent.archive.process import Process
from atoll.agent.archive.readers import load_reader
from atoll.agent.archive.types import ArchiveLimits, Clock
from atoll.errors import ArchiveError

_REFUSED = (errno.EPERM, errno.EACCES)
_NUMBERS = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "io_uring_setup": 425, "openat2": 437},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "io_uring_setup": 425, "openat2": 437},
}
_syscall = ctypes.CDLL(None, use_errno=True).syscall


def _raw(name: str, *args: object) -> None:
    number = _NUMBERS[platform.machine()][name]
    if _syscall(ctypes.c_long(number), *args) < 0:
        raise OSError(ctypes.get_errno(), name)


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


HARMLESS = {
    "read a file": lambda _: Path("/etc/passwd").read_bytes(),
    "read the library": lambda _: Path(os.__file__).read_bytes(),
    "stat": lambda _: os.stat("/etc/passwd"),
    "list": lambda _: os.listdir("/"),
    "follow a link": lambda _: os.readlink("/proc/self/exe"),
    "own memory map": lambda _: Path("/proc/self/maps").read_bytes(),
    "udp": lambda _: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "tcp": lambda _: socket.socket().close(),
    "unix socket": lambda _: socket.socket(socket.AF_UNIX).close(),
    "socket pair": lambda _: socket.socketpair(),
    "pipe": lambda _: os.pipe(),
    "look for the parent": lambda pid: os.kill(pid, 0),
    "limits of the parent": lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE),
    "handle on the parent": lambda pid: os.close(os.pidfd_open(pid)),
    "memory file": lambda _: os.close(os.memfd_create("x")),
    "shared memory": lambda _: mmap.mmap(-1, 4096).close(),
    "new code": lambda _: mmap.mmap(
        -1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_EXEC
    ).close(),
    "place in a file": lambda _: os.lseek(_scratch[0], 0, os.SEEK_SET),
    "place by reading": lambda _: os.read(_scratch[0], 1),
    "shorten a file": lambda _: os.ftruncate(_scratch[0], 0),
}
"""Those that a process without walls may try as well."""
ATTEMPTS = HARMLESS | {
    "write a file": lambda _: Path("/tmp/atoll-was-here").write_bytes(b""),
    "memory of the parent": lambda pid: Path(f"/proc/{pid}/mem").open("rb").close(),
    "environment of the parent": lambda pid: Path(f"/proc/{pid}/environ").read_bytes(),
    "memory by process_vm_readv": lambda pid: _raw("process_vm_readv", pid, None, 0, None, 0, 0),
    "ptrace": lambda pid: _raw("ptrace", 0x4206, pid, 0, 0),  # PTRACE_SEIZE, which stops nothing
    "io_uring": lambda _: _raw("io_uring_setup", 1, None),
    "openat2": lambda _: _raw("openat2", -100, b"/etc/passwd", None, 0),
    "more memory": lambda _: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)),
    "fork": lambda _: _fork(),
    "subprocess": lambda _: subprocess.run(["/bin/true"], check=False),
    "execute": lambda _: os.execv("/bin/true", ["true"]),
}
_scratch: list[int] = []


def load() -> None:
    with suppress(ArchiveError):  # another user's Python may lack the library
        load_reader("pdf")
    _scratch.append(os.memfd_create("scratch"))


def outcomes(pid: int, *, harmless: bool) -> tuple[dict[str, str], bytes]:
    return {name: _outcome(name, pid) for name in (HARMLESS if harmless else ATTEMPTS)}, b""


def _outcome(name: str, pid: int) -> str:
    try:
        ATTEMPTS[name](pid)
    except (OSError, ValueError) as exc:  # setrlimit has its own way to say it
        code = exc.errno if isinstance(exc, OSError) else errno.EPERM
        return "refused" if code in _REFUSED else f"{type(exc).__name__}: {exc}"
    return "got through"


def start_thread() -> tuple[dict[str, str], bytes]:
    """It is behind the walls of the one that starts it."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_outcome("read a file", 0)))
    thread.start()
    thread.join()
    return {"outcome": found[0]}, b""


def read_damaged(seed: int) -> tuple[dict[str, str], bytes]:
    """A PDF with bytes changed, left out, put in or cut off at random; its text."""
    from atoll.agent.archive.readers import PdfReader

    limits = ArchiveLimits()
    reader = PdfReader(io.BytesIO(damaged(seed)), "pdf", limits, Clock(limits))
    return {}, b"".join(reader.read(name) for name in reader.catalog.keys)


def damaged(seed: int) -> bytes:
    rng = random.Random(seed)
    data = bytearray(make_pdf(b"The first page", b"A second one"))
    for _ in range(rng.randint(1, 12)):
        at = rng.randrange(9, len(data))
        kind = rng.randrange(8)
        if kind == 0:
            del data[at : at + rng.randint(1, 20)]
        elif kind == 1:
            data[at:at] = rng.randbytes(rng.randint(1, 20))
        elif kind == 2 and len(data) > 500:
            del data[-rng.randint(1, 50) :]
        else:
            data[at] = rng.choice(b"0123456789<>[]()/ \0\xff")
    return bytes(data)


def main() -> None:
    handlers = {"outcomes": outcomes, "thread": start_thread, "damaged": read_damaged}
    confined.serve(handlers, load)


def report() -> dict[str, object]:
    """All of it as whoever runs this; also by another user, as a program."""
    process = Process("attempts", memory=1 << 29, seconds=30, most=1000)
    try:
        process.start()
        found = process.ask("outcomes", pid=os.getpid(), harmless=False)[0]
        thread = process.ask("thread")[0]["outcome"]
    finally:
        process.close()
    with open_archive(make_zip({"a": b"text"})) as archive:
        read = archive.confined and archive.text("a")
    return {"confined": process.confined, "outcomes": found, "thread": thread, "read": read}


if __name__ == "__main__":
    try:
        print(json.dumps(report()))
    except ArchiveError as exc:
        print(json.dumps({"error": str(exc)}))

"""Runs one program in a jail without a network and returns its output: the sandbox of a build."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import PackageError
from atoll.jail.measure import probe
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.client import supervisor
from atoll.jail.supervisor.spec import GUEST_CODE, Bind, JailSpec, Limits
from atoll.jail.walls import users
from atoll.launch.guest_handle import request_guest
from atoll.launch.interpreter import environment, python_binds
from atoll.policy import MIB, Isolation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from atoll.launch.guest_handle import StartingGuest
    from atoll.launch.interpreter import Interpreter

MAX_OUTPUT = 8 * MIB
CHUNK = 1 << 20
END_SECONDS, WAKE_SECONDS, PAUSE_SECONDS = 30.0, 1.0, 0.01
LIMITS = Limits(
    memory=2048 * MIB, processes=64, disk=2048 * MIB, file_size=4096 * MIB, open_files=1024
)


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """The output of a program."""

    stdout: str
    stderr: str


def run(
    python: Interpreter,
    arguments: Sequence[str],
    *,
    seen: Mapping[str, str],
    folder: Path,
    seconds: float,
    owned: Mapping[str, str] | None = None,
) -> CompletedRun:
    """Run Python with the arguments in `folder`, the only folder that it may write to.

    `seen` maps names to host paths that it may read; an argument that is such a name is replaced
    by the path inside the jail. `owned` are such paths of which the program is shown as the owner,
    so that it may read what others may not. SECURITY: when this returns or raises, no process of
    the program is left that could still change the folder.
    """
    level = asyncio.run(probe.host()).level
    if level < Isolation.CONFINED:
        reason = "no jail can be made here to build them in"
        raise PackageError("", reason, "`atoll doctor` says why.")
    jailed = level >= Isolation.JAILED
    _open_for_guest(seen.values())
    shown = {**seen, **(owned or {})}
    inside = {name: f"{GUEST_CODE}/{name}" if jailed else path for name, path in shown.items()}
    binds = [
        Bind(source=path, target=f"{GUEST_CODE}/{name}", owned=name not in seen)
        for name, path in shown.items()
    ]
    binds += python_binds(python)
    spec = JailSpec(
        jailed=jailed,
        argv=(python.path, "-I", "-B", "-X", "utf8", *(inside.get(arg, arg) for arg in arguments)),
        env=environment(python),
        binds=tuple(binds),
        workspace=str(folder),
        limits=LIMITS,
    )
    process = request_guest(spec)
    try:
        printed = read_output(process, seconds, MAX_OUTPUT)
        if not any(printed):
            _raise_failure(process)
        return CompletedRun(*(text.decode(errors="replace") for text in printed))
    except TimeoutError:
        raise PackageError("", f"the build took longer than {seconds:g} s") from None
    finally:
        try:
            _end(process)
        finally:
            process.close()


def _open_for_guest(paths: Iterable[str]) -> None:
    """Make files, and folders with their files, readable for the guest's user: see the umask.

    The folder that they lie in stays private: a jail binds them by descriptor.
    """
    for path in map(Path, paths) if users.may_switch() else ():
        for file in (path, *path.iterdir()) if path.is_dir() else (path,):
            mode = file.lstat().st_mode
            wanted = 0o055 if stat.S_ISDIR(mode) else 0o044
            if not stat.S_ISLNK(mode) and mode & wanted != wanted:
                file.chmod(stat.S_IMODE(mode) | wanted)


def _end(process: StartingGuest) -> None:
    """Kill every process of the jail, and wait until there is none; PackageError if one is left.

    A program that has ended may have left others, which closed their output.
    """
    deadline = time.monotonic() + END_SECONDS
    with contextlib.suppress(OSError):  # it has ended already
        packets.send(process.lease, "kill")
    while (left := deadline - time.monotonic()) > 0:
        process.lease.settimeout(min(left, WAKE_SECONDS))
        try:
            message = packets.receive(process.lease)
        except (TimeoutError, BlockingIOError):
            supervisor.wake(supervisor.pid)  # it may have been stopped
            time.sleep(PAUSE_SECONDS)
            continue
        except OSError:
            return
        if message is None or message.kind in ("ended", "failed"):
            return
    raise PackageError("", f"processes of the build were still there after {END_SECONDS:g} s")


def read_output(process: StartingGuest, seconds: float, most: int) -> tuple[bytes, bytes]:
    """Return stdout and stderr of a program when it ends, at most `most` bytes of each.

    Raise TimeoutError if it does not end within `seconds`.
    """
    answers, errors = process.channel_fds[0], process.output_fds[1]
    heard = {fd: bytearray() for fd in (answers, errors, process.output_fds[0])}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for fd in heard:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(left):
                data = os.read(key.fd, CHUNK)
                heard[key.fd] += data[: most - len(heard[key.fd])]
                if not data:
                    selector.unregister(key.fd)
    return bytes(heard[answers]), bytes(heard[errors])


def _raise_failure(process: StartingGuest) -> None:
    """Raise the supervisor's error about a jail that did not start."""
    process.lease.settimeout(1)
    with contextlib.suppress(OSError, ValueError):
        while message := packets.receive(process.lease):
            if message.kind == "failed":
                reason = message.fields["reason"]
                raise PackageError("", f"the jail for the build did not start: {reason}")

"""Shell commands: each a process of its own beside the guest's Python, in a session of its own.

Programs that a command leaves in the background run on; a command that is stopped is killed with
its whole session. The functions that wait and kill are bound when this module is loaded, before
guest code can patch them.
"""

from __future__ import annotations

import os
import posix
import sys
from errno import EOPNOTSUPP
from posix import (
    O_CLOEXEC,
    O_CREAT,
    O_EXCL,
    O_RDONLY,
    O_RDWR,
    O_TMPFILE,
    WNOHANG,
    close,
    killpg,
    listdir,
    lseek,
    read,
    waitpid,
    write,
)
from posix import open as open_fd
from select import POLLIN, poll

from ..shared import values
from ..shared.kinds import bytes_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.interrupt import InterruptGate
    from ..shared.messages import CommandEnd, ShellParams

SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
LONGEST_ARGUMENT = 100_000
"""The kernel allows 128 KiB; a longer command is read from a file without a name."""
PATIENCE_MS = 50
"""How late an interrupt may be seen that came just before a sleep began."""
PAUSE_MS = 5
CANNOT_RUN, NOT_FOUND = 126, 127
_KILL = 9
_SIGNAL_BITS, _SIGNALLED = 0x7F, 128
_open_handle: Any = getattr(posix, "pidfd_open", None)  # not before Python 3.9
_OURS = "/opt/atoll/"
"""Where a host's Python is in an image without one, whose programs could not start it."""
_PYTHON_FOLDER = "" if sys.prefix.startswith(_OURS) else os.path.dirname(sys.executable or "")


def run(
    params: ShellParams, folder: str, streams: tuple[int, int], gate: InterruptGate
) -> CommandEnd:
    """Run a command; return its exit code, that it was interrupted, or why it did not start."""
    command = Command()

    def work() -> CommandEnd:
        with gate:  # never between its start and our knowing of it
            command.start(params, folder, streams)
        return {"exit_code": command.wait()}

    try:
        return gate.run(work, command.interrupted)  # type: ignore[no-any-return]
    except BaseException as exc:  # guest code may have put anything in the way of a start
        command.end()
        code = NOT_FOUND if isinstance(exc, FileNotFoundError) else CANNOT_RUN
        error = "{}: {}".format(type(exc).__name__, values.short_text(exc))
        return {"error": error, "exit_code": code}
    finally:
        command.forget()


class Command:
    """A shell and what it starts, until it has ended or is ended."""

    def __init__(self) -> None:
        self._process: Any = None
        self._handle = -1
        self._reaped = False
        self._exit_code: int | None = None

    def start(self, params: ShellParams, folder: str, streams: tuple[int, int]) -> None:
        """Start it as the leader of a new session, so that all its processes can be found."""
        subprocess = _import_subprocess()
        opened: list[int] = []
        try:
            arguments = _arguments(params, opened)
            passed, given = list(opened), subprocess.DEVNULL
            if "stdin" in params:
                given = unnamed_file(bytes_of(params["stdin"]))
                opened.append(given)
            self._process = subprocess.Popen(
                arguments,
                stdin=given,
                stdout=streams[0],
                stderr=streams[1],
                cwd=os.path.join(folder, params.get("cwd", "")),
                env=_environment(params.get("env", {})),
                pass_fds=passed,
                start_new_session=True,
            )
        finally:
            for fd in opened:
                close(fd)
        self._handle = _handle(self._process.pid)

    def wait(self) -> int | None:
        """Wait for its end; return its exit code, None if guest code has asked for that before."""
        watch = poll()
        if self._handle >= 0:
            watch.register(self._handle, POLLIN)
        while not self.has_ended():
            watch.poll(PATIENCE_MS if self._handle >= 0 else PAUSE_MS)
        return self._exit_code

    @property
    def exit_code(self) -> int | None:
        """The exit code, once it has ended by itself."""
        return self._exit_code

    def has_ended(self) -> bool:
        """Return whether the shell has ended; what it left in the background may still run."""
        if not self._reaped:
            try:
                ended, status = waitpid(self._process.pid, WNOHANG)
            except ChildProcessError:
                self._reaped = True
                return True
            if ended:
                self._reaped, self._exit_code = True, _exit_code(status)
        return self._reaped

    def interrupted(self) -> CommandEnd:
        """Kill it and everything that it started; return the answer for the host."""
        self.end()
        return {"interrupted": True}

    def end(self) -> None:
        """Kill its session group by group: a process cannot fork out of its group."""
        if self._process is None:
            return
        while True:
            groups = _groups_of(self._process.pid)
            for group in groups:
                try:
                    killpg(group, _KILL)
                except OSError:
                    pass  # it has gone by itself
            self._reap()
            if not groups:
                return
            poll().poll(1)

    def forget(self) -> None:
        """Close the descriptor of the process."""
        if self._handle >= 0:
            try:
                close(self._handle)
            except OSError:
                pass  # guest code has
        if self._process is not None:
            self._process.returncode = 0  # nobody else need wait for it

    def _reap(self) -> None:
        if not self._reaped:
            try:
                self._reaped = bool(waitpid(self._process.pid, WNOHANG)[0])
            except ChildProcessError:
                self._reaped = True


def _arguments(params: ShellParams, opened: list[int]) -> list[Any]:
    """Return what to execute; a command that is too long for an argument is in an opened file."""
    if "argv" in params:
        return [_encoded(word) for word in params["argv"]]
    shell = next(path for path in SHELLS if os.path.exists(path))
    data = _encoded(params["command"])
    if len(data) <= LONGEST_ARGUMENT:
        return [shell, "-c", data]
    opened.append(unnamed_file(data))
    return [shell, "/dev/fd/{}".format(opened[0])]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def unnamed_file(data: bytes) -> int:
    """Write bytes to a file without a name; return its descriptor, at the file's begin."""
    fd = _open_unnamed()
    try:
        view = memoryview(data)
        while view:
            view = view[write(fd, view) :]
        lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        close(fd)
        raise
    return fd


def _open_unnamed() -> int:
    try:
        return open_fd("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0o600)  # noqa: S108 - the jail's own
    except OSError as exc:
        if exc.errno != EOPNOTSUPP:  # gVisor's kernel makes none
            raise
    path = "/tmp/.atoll-{}".format(posix.urandom(8).hex())  # noqa: S108
    fd = open_fd(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0o600)
    posix.unlink(path)
    return fd


def _import_subprocess() -> Any:
    """Import subprocess, which from Python 3.14 on reads `os.environ` when it is loaded."""
    shown = vars(sys.modules.get("os", os))
    replaced = {name: shown[name] for name in ("environ",) if name in shown}
    shown["environ"] = os.environ
    try:
        import subprocess
    finally:
        del shown["environ"]
        shown.update(replaced)
    return subprocess


def _environment(given: dict[str, str]) -> dict[str, str]:
    """Return the environment with the given variables, and the folder of this Python in PATH."""
    env = dict(os.environ)
    folders = env.get("PATH", os.defpath).split(":")
    if _PYTHON_FOLDER and _PYTHON_FOLDER not in folders:  # an image may have others before it
        env["PATH"] = ":".join([_PYTHON_FOLDER, *folders])
    env.update(given)
    return env


def _handle(pid: int) -> int:
    """Return a pidfd; -1 where Python or the kernel has none."""
    try:
        return -1 if _open_handle is None else int(_open_handle(pid))
    except OSError:
        return -1


def _exit_code(status: int) -> int:
    number = status & _SIGNAL_BITS
    return _SIGNALLED + number if number else status >> 8


def _groups_of(session: int) -> set[int]:
    """Return the process groups of a session that have living processes."""
    groups = set()
    for name in listdir("/proc"):
        state, group, its_session = _facts(name) if name.isdigit() else ("Z", 0, 0)
        if its_session == session and state not in "ZX":
            groups.add(group)
    return groups


def _facts(pid: str) -> tuple[str, int, int]:
    """Return state, process group and session of a process."""
    try:
        fd = open_fd("/proc/{}/stat".format(pid), O_RDONLY | O_CLOEXEC)
    except OSError:
        return "X", 0, 0
    try:
        state, _, group, session = read(fd, 4096).rpartition(b")")[2].split()[:4]
    except (OSError, ValueError):
        return "X", 0, 0
    finally:
        close(fd)
    return state.decode("ascii"), int(group), int(session)

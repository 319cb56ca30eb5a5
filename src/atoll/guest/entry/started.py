"""A process beside the guest, in a container with a kernel of its own: starts and watches it.

    host ── description ──▶ this process, forked off pid 1 ──▶ the program
     ▲ ◀── "started PID", "failed WHY", "ended STATUS" ──┘  copies bytes between the program's
     └── "signal N", "resize ROWS COLUMNS" ──▶              terminal, if it has one, and pipes

gVisor may turn no key into a signal (that of Debian 12 does not). So keys such as Ctrl-C are taken
out here, and a process in the session of the terminal, which alone may ask which process group is
in its foreground, sends that the signal.

SECURITY: the walls are outside. What this process reports is the guest's word.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PIECE = 1 << 16
CHECK_SECONDS = 0.02
SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
END_OF_INPUT = b"\x04"
KEYS = (
    (termios.VINTR, signal.SIGINT),
    (termios.VQUIT, signal.SIGQUIT),
    (termios.VSUSP, signal.SIGTSTP),
)
"""Keys that are signals, by their place in the terminal's settings."""


def serve(control: int, streams: list[int]) -> NoReturn:
    """Start the program that the host describes; report its end, and exit."""
    end = socket.socket(fileno=control)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        program = Program(_receive_spec(end), streams)
    except Exception as exc:
        why = "{}: {}".format(exc.strerror, exc.filename) if isinstance(exc, OSError) else exc
        _tell(end, "failed {}".format(str(why).replace("\n", " ")[:1000]))
        os._exit(1)
    _tell(end, "started {}".format(program.process.pid))
    status = program.watch(end)
    _tell(end, "ended {}".format(status))
    os._exit(0)


class Program:
    """A program that runs, with its pipes or its terminal."""

    def __init__(self, spec: dict[str, Any], streams: list[int]) -> None:
        self._stdin, self._stdout, self._stderr = streams
        self._terminal = self._signaller = -1
        argv = spec["argv"]
        if not argv[0]:
            shell = [path for path in SHELLS if os.access(path, os.X_OK)]
            argv = [(shell or SHELLS)[0], "-c", *argv[1:]]
        os.chdir(spec["folder"] or ".")
        given, size = streams, spec["terminal"]
        if size:
            self._terminal, inner = os.openpty()
            self.resize(*size)
            given = [inner] * 3
            numbers, self._signaller = os.pipe()
        self.process = subprocess.Popen(
            argv,
            stdin=given[0],
            stdout=given[1],
            stderr=given[2],
            env=spec["env"],
            start_new_session=True,
            preexec_fn=(lambda: _take_terminal(numbers)) if size else None,  # noqa: PLW1509 - this process has one thread
        )
        for fd in set(given) | ({self._stderr, numbers} if size else set()):
            os.close(fd)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal."""
        if self._terminal >= 0:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def watch(self, control: socket.socket) -> int:
        """Obey the host and carry bytes until the program has ended; return its wait status."""
        watched = [control.fileno()]
        if self._terminal >= 0:
            watched += [self._terminal, self._stdin]
        line = b""
        while True:
            pid, status = os.waitpid(self.process.pid, os.WNOHANG)
            ready, _, _ = select.select(watched, [], [], 0 if pid else CHECK_SECONDS)
            if control.fileno() in ready:
                line = self._obey(line + os.read(control.fileno(), PIECE))
            carried = [fd for fd in ready if fd != control.fileno()]
            watched = [fd for fd in watched if fd not in carried or self._carry(fd)]
            if pid and not (self._terminal in carried and self._terminal in watched):
                return status

    def _carry(self, fd: int) -> bool:
        """Copy a piece to or from the terminal; return whether there can be more."""
        try:
            data = os.read(fd, PIECE)
        except OSError:  # no process has the terminal open any more
            data = b""
        if fd == self._stdin:
            self._type(data or END_OF_INPUT)
        else:
            _write_all(self._stdout, data)
        return bool(data)

    def _type(self, data: bytes) -> None:
        """Write to the terminal; keys that are signals are shown and sent, as a terminal would."""
        _, _, _, flags, _, _, keys = termios.tcgetattr(self._terminal)
        signals = {keys[key]: number for key, number in KEYS} if flags & termios.ISIG else {}
        typed = b""
        for value in data:
            key = bytes([value])
            if key not in signals or key == b"\0":
                typed += key
                continue
            _write_all(self._terminal, typed)
            typed = b""
            if flags & termios.ECHO:
                _write_all(self._stdout, b"^" + bytes([value ^ 0x40]))
            os.write(self._signaller, bytes([signals[key]]))
        _write_all(self._terminal, typed)

    def _obey(self, said: bytes) -> bytes:
        """Carry out commands; return the beginning of the next one."""
        *lines, rest = said.split(b"\n")
        for word, *numbers in (line.split() for line in lines if line):
            if word == b"signal":
                os.killpg(self.process.pid, int(numbers[0]))
            elif word == b"resize":
                self.resize(*map(int, numbers))
        if not said:  # the host has closed it
            os.killpg(self.process.pid, signal.SIGKILL)
            sys.exit(1)
        return rest


def _receive_spec(end: socket.socket) -> dict[str, Any]:
    size, data = struct.unpack("I", end.recv(4, socket.MSG_WAITALL))[0], b""
    while len(data) < size:
        data += end.recv(size - len(data))
    spec: dict[str, Any] = json.loads(data)
    return spec


def _take_terminal(numbers: int) -> None:
    """In the new session: make the terminal its own, and leave the process there that signals."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    elif os.fork():  # whose parent is gone: the program gets no child that it did not start
        os._exit(0)
    else:
        _send_signals(numbers)


def _send_signals(numbers: int) -> NoReturn:
    """Send each signal that is asked for to the foreground, until the terminal is over."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) not in (0, numbers):
                with contextlib.suppress(OSError):
                    os.close(int(fd))
        while True:
            asked = os.read(numbers, 1)
            if not asked:
                break
            with contextlib.suppress(OSError):  # the foreground has just ended
                os.killpg(os.tcgetpgrp(0), asked[0])
    finally:
        os._exit(0)


def _tell(end: socket.socket, text: str) -> None:
    end.sendall((text + "\n").encode("utf-8", "replace"))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])

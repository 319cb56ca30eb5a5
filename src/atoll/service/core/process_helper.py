"""Runs in the guest, by itself: starts the processes that the service asks for beside the cells.

It reads requests, one JSON object a line, from a FIFO in its folder. The output of process N goes
to the files N.out and N.err, its end to N.end. A process may have a terminal: what it prints there
goes to N.out. Only the standard library, and Python 3.8.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Fields = dict[str, Any]
    """A request or a report: one JSON object."""

REQUESTS = "requests"
CHECK_MS = 20
MAX_LINE = 1 << 20


class Processes:
    """The processes that were started and have not been reported as ended."""

    def __init__(self, folder: str, watch: select.poll) -> None:
        self._folder, self._watch = folder, watch
        self._running: dict[int, Any] = {}
        self._terminals: dict[int, Terminal] = {}

    def take(self, asked: Fields) -> None:
        """Carry out a request; errors go to N.end."""
        number = int(asked["n"])
        try:
            getattr(self, "_" + str(asked["op"]))(number, asked)
        except Exception as exc:  # noqa: BLE001 - the next request is served all the same
            if asked.get("op") == "start":
                self._end(number, {"error": f"{type(exc).__name__}: {exc}"})

    def collect(self) -> None:
        """Tell of those that have ended."""
        for number, process in list(self._running.items()):
            code = process.poll()
            terminal = self._terminals.get(number)
            if terminal is not None and not terminal.carry():
                self._forget(terminal)
            if code is not None:
                del self._running[number]
                self._close_input(process)
                if terminal is not None:
                    self._forget(terminal)
                    self._terminals.pop(number).close()
                killed = code < 0
                ended = {"exit_code": 128 - code if killed else code}
                self._end(number, {**ended, "signal": -code if killed else None})

    @property
    def wait_ms(self) -> int | None:
        """How long to wait for the next request: a while if a process may end meanwhile."""
        return CHECK_MS if self._running else None

    def _start(self, number: int, asked: Fields) -> None:
        command = asked["command"]
        given = ["/bin/bash", "-c", command] if isinstance(command, str) else command
        if asked.get("pty"):
            return self._start_in_terminal(number, asked, given)
        with (
            open(self._path(number, "out"), "wb") as out,
            open(self._path(number, "err"), "wb") as err,
        ):
            process = subprocess.Popen(
                given,
                stdin=subprocess.PIPE if asked.get("stdin") else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                **_place(asked),
            )
        self._running[number] = process
        self._put(number, "pid", {"pid": process.pid})
        return None

    def _start_in_terminal(self, number: int, asked: Fields, command: list[str]) -> None:
        terminal, inner = os.openpty()
        try:
            _set_size(terminal, asked["pty"])
            process = subprocess.Popen(
                command,
                stdin=inner,
                stdout=inner,
                stderr=inner,
                preexec_fn=_take_terminal,  # noqa: PLW1509 - this process has one thread
                **_place(asked),
            )
        except BaseException:
            os.close(terminal)
            raise
        finally:
            os.close(inner)
        self._terminals[number] = Terminal(terminal, self._path(number, "out"))
        self._watch.register(terminal, select.POLLIN)
        self._running[number] = process
        self._put(number, "pid", {"pid": process.pid})

    def _forget(self, terminal: Terminal) -> None:
        """Stop watching a terminal; a poll would not wait for one whose inner end is closed."""
        with contextlib.suppress(KeyError):
            self._watch.unregister(terminal.fd)

    def _resize(self, number: int, asked: Fields) -> None:
        _set_size(self._terminals[number].fd, asked["pty"])

    def _input(self, number: int, asked: Fields) -> None:
        process = self._running[number]
        if number in self._terminals:
            self._terminals[number].typed += base64.b64decode(asked.get("data") or "")
        elif asked.get("data"):
            process.stdin.write(base64.b64decode(asked["data"]))
            process.stdin.flush()
        if asked.get("end"):
            self._close_input(process)

    def _signal(self, number: int, asked: Fields) -> None:
        os.killpg(self._running[number].pid, int(asked["signal"]))

    def _close_input(self, process: Any) -> None:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _end(self, number: int, report: Fields) -> None:
        self._put(number, "end", report)

    def _put(self, number: int, kind: str, report: Fields) -> None:
        draft = self._path(number, "draft")
        with open(draft, "w") as file:
            json.dump(report, file)
        os.rename(draft, self._path(number, kind))

    def _path(self, number: int, kind: str) -> str:
        return f"{self._folder}/{number}.{kind}"


class Terminal:
    """The outer end of a pseudo-terminal, which never makes the helper wait."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self.typed = fd, b""
        os.set_blocking(fd, False)
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed with the terminal

    def carry(self) -> bool:
        """Pass on what was typed and what was printed; return whether there can be more."""
        with contextlib.suppress(OSError):
            while self.typed:
                self.typed = self.typed[os.write(self.fd, self.typed) :]
        try:
            while piece := os.read(self.fd, 1 << 16):
                self._file.write(piece)
        except BlockingIOError:
            return True
        except OSError:  # the inner end is closed
            pass
        return False

    def close(self) -> None:
        """End it; processes that still have it get a hang-up."""
        os.close(self.fd)
        self._file.close()


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _place(asked: Fields) -> Fields:
    """Return where a process runs: its folder, environment and session."""
    env = dict(os.environ, **asked.get("env", {}))
    return {"cwd": asked.get("cwd") or None, "env": env, "start_new_session": True}


def _set_size(fd: int, size: Fields) -> None:
    rows, columns = int(size["rows"]), int(size["cols"])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def main(folder: str) -> None:
    """Serve requests until the sandbox ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path = f"{folder}/{REQUESTS}"
    os.mkfifo(path, 0o600)
    incoming = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    watch, rest = select.poll(), b""
    processes = Processes(folder, watch)
    watch.register(incoming, select.POLLIN)
    with open(folder + "/ready", "w"):
        pass
    while True:
        if incoming in dict(watch.poll(processes.wait_ms)):
            rest += os.read(incoming, 1 << 16)
            *lines, rest = rest.split(b"\n")
            rest = rest[-MAX_LINE:]
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    processes.take(json.loads(line))
        processes.collect()


if __name__ == "__main__":
    main(sys.argv[1])

"""Runs in the guest, by itself: starts the processes that the service asks for beside the cells.

It reads requests, one JSON object a line, from a FIFO in its folder. The output of process N goes
to the files N.out and N.err, its end to N.end. Only the standard library, and Python 3.8.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any

REQUESTS = "requests"
CHECK_MS = 20
MOST_LINE = 1 << 20


class Processes:
    """The processes that were started and have not been reported as ended."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._running: dict[int, Any] = {}

    def take(self, asked: dict[str, Any]) -> None:
        """Carry out one request; what goes wrong with it is told in the file of its end."""
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
            if code is not None:
                del self._running[number]
                self._close_input(process)
                self._end(number, {"exit_code": code if code >= 0 else 128 - code,
                                   "signal": -code if code < 0 else None})  # fmt: skip

    @property
    def wait_ms(self) -> int | None:
        """How long to wait for the next request: a while if a process may end meanwhile."""
        return CHECK_MS if self._running else None

    def _start(self, number: int, asked: dict[str, Any]) -> None:
        command = asked["command"]
        given = ["/bin/bash", "-c", command] if isinstance(command, str) else command
        with (
            open(self._path(number, "out"), "wb") as out,
            open(self._path(number, "err"), "wb") as err,
        ):
            process = subprocess.Popen(
                given, cwd=asked.get("cwd") or None, env=dict(os.environ, **asked.get("env", {})),
                stdin=subprocess.PIPE if asked.get("stdin") else subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        self._running[number] = process
        self._put(number, "pid", {"pid": process.pid})

    def _input(self, number: int, asked: dict[str, Any]) -> None:
        process = self._running[number]
        if asked.get("data"):
            process.stdin.write(base64.b64decode(asked["data"]))
            process.stdin.flush()
        if asked.get("end"):
            self._close_input(process)

    def _signal(self, number: int, asked: dict[str, Any]) -> None:
        os.killpg(self._running[number].pid, int(asked["signal"]))

    def _close_input(self, process: Any) -> None:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _end(self, number: int, told: dict[str, Any]) -> None:
        self._put(number, "end", told)

    def _put(self, number: int, kind: str, told: dict[str, Any]) -> None:
        draft = self._path(number, "draft")
        with open(draft, "w") as file:
            json.dump(told, file)
        os.rename(draft, self._path(number, kind))

    def _path(self, number: int, kind: str) -> str:
        return f"{self._folder}/{number}.{kind}"


def main(folder: str) -> None:
    """Serve requests until the sandbox ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path = f"{folder}/{REQUESTS}"
    os.mkfifo(path, 0o600)
    incoming = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    watch, processes, rest = select.poll(), Processes(folder), b""
    watch.register(incoming, select.POLLIN)
    with open(folder + "/ready", "w"):
        pass
    while True:
        if watch.poll(processes.wait_ms):
            rest += os.read(incoming, 1 << 16)
            *lines, rest = rest.split(b"\n")
            rest = rest[-MOST_LINE:]
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    processes.take(json.loads(line))
        processes.collect()


if __name__ == "__main__":
    main(sys.argv[1])

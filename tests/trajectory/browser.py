"""A real browser for tests, spoken to over a pipe: no port is open, and nothing of it is left."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60
LAUNCH = """
import os, sys
for end, place in zip(sys.argv[1:3], (3, 4)):  # where the browser reads, and where it writes
    os.dup2(int(end), place)
os.execv(sys.argv[3], sys.argv[3:])
"""
OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
]  # fmt: skip


def found() -> str | None:
    """Where a browser is, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a Chromium, and what it said since it was opened."""

    def __init__(self, folder: str) -> None:
        program = found()
        assert program is not None
        (reads, self._out), (self._in, writes) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (reads, writes)]
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", LAUNCH, *map(str, ends), program, *OPTIONS,
             f"--user-data-dir={folder}", "about:blank"],
            pass_fds=ends, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (reads, writes, *ends):
            os.close(fd)
        self._number, self._buffer, self._session = 0, b"", None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        opened = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = opened["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def open(self, url: str) -> None:
        """Load a page, and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def js(self, text: str) -> Any:
        """The value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=text, returnByValue=True)["result"].get(
            "value"
        )

    def click(self, x: float, y: float) -> None:
        """A click of the mouse."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What the browser answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (heard := self._hear()).get("id") != self._number:
            pass
        assert "error" not in heard, heard
        return heard["result"]

    def wait(self, method: str) -> None:
        """Until the browser has told of an event."""
        late = time.monotonic() + SECONDS
        while method not in {event["method"] for event in self.events}:
            assert time.monotonic() < late, f"no {method}"
            self._hear()

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._in, 1 << 16)
            assert data, "the browser has gone"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        heard = json.loads(line)
        if "method" in heard:
            self.events.append(heard)
        return heard

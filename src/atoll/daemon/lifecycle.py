"""A daemon seen from outside: started so that it outlives us, asked, stopped, its log read."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from atoll.backends.daemon import connection
from atoll.daemon.paths import AlreadyRunningError
from atoll.daemon.process import READY
from atoll.errors import AtollError, BackendUnavailableError, SandboxStartError
from atoll.jail.supervisor import packets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from atoll.daemon.paths import DaemonPaths
    from atoll.hosting.limits import DaemonLimits

REPORT_SECONDS = 5.0
"""How often a start that takes long says what it is doing."""
STOP_SECONDS = 15.0
_PAUSE_SECONDS = 0.02


def start(
    paths: DaemonPaths,
    limits: DaemonLimits,
    on_wait: Callable[[str], None] = lambda _text: None,
    preload: Sequence[str] = (),
    tier: str | None = None,
) -> int:
    """Start a daemon that lives on; its pid. It is waited for as long as it lives.

    `on_wait` is called with what the daemon is doing, if that takes more than a second.
    """
    command = ["-m", "atoll.daemon.process", *_arguments(paths, limits, preload, tier)]
    return spawn(paths, command, on_wait)


def spawn(
    paths: DaemonPaths, command: Sequence[str], on_wait: Callable[[str], None] = lambda _text: None
) -> int:
    """Start a process of this Python that lives on and serves at `paths`; return its pid."""
    if paths.claimed():
        raise AlreadyRunningError(f"a daemon runs already at {paths.socket}")
    paths.check()
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        try:
            ready = _wait_until_ready(process.stdout.fileno(), on_wait)
        except BaseException:  # Ctrl-C: the daemon is in a session of its own, and does not see it
            process.kill()
            process.wait()
            raise
        if not ready:
            reason = process.stderr.read().decode("utf-8", "replace").strip()
            process.wait()
            if paths.claimed():  # another one was a moment faster
                raise AlreadyRunningError(f"a daemon runs already at {paths.socket}")
            raise SandboxStartError("daemon", reason or f"it ended; see {paths.log}")
    process.returncode = 0  # it is not ours to wait for
    return process.pid


def _wait_until_ready(fd: int, on_wait: Callable[[str], None]) -> bool:
    """Pass on what the starting daemon reports; return whether it got ready before it ended."""
    text, doing, pause = b"", "starting", 1.0
    while READY.encode() not in text.split(b"\n"):
        if not packets.is_readable(fd, pause):
            on_wait(doing)
            pause = REPORT_SECONDS
            continue
        piece = os.read(fd, 4096)
        if not piece:
            return False
        text += piece
        lines = text.decode("utf-8", "replace").split("\n")
        doing = lines[-2] if len(lines) > 1 else doing
    return True


def status(paths: DaemonPaths) -> dict[str, Any] | None:
    """Return the daemon's stats; None if none runs."""
    if not paths.claimed():
        return None
    try:
        return asyncio.run(connection.stats(paths.socket))
    except BackendUnavailableError:
        if not paths.claimed():
            return None
        raise


def stop(paths: DaemonPaths) -> dict[str, Any] | None:
    """End the daemon and wait until it is gone; what it said of itself before, None if none ran."""
    facts = status(paths)
    if facts is None:
        return None
    os.kill(facts["pid"], signal.SIGTERM)
    end = time.monotonic() + STOP_SECONDS
    while paths.claimed():
        if time.monotonic() > end:
            raise AtollError(f"the daemon (pid {facts['pid']}) does not end: see {paths.log}")
        time.sleep(_PAUSE_SECONDS)
    return facts


def log_lines(paths: DaemonPaths, count: int, *, follow: bool) -> Iterator[str]:
    """Yield the last lines of the log; with `follow`, new ones as they come."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(paths.log.open(encoding="utf-8", errors="replace"))
        yield from file.readlines()[-count:]
        while follow:
            if line := file.readline():
                yield line
            elif paths.log.exists() and os.fstat(file.fileno()).st_ino != paths.log.stat().st_ino:
                file = stack.enter_context(paths.log.open(encoding="utf-8", errors="replace"))
            else:
                time.sleep(0.2)


def _arguments(
    paths: DaemonPaths, limits: DaemonLimits, preload: Sequence[str], tier: str | None
) -> list[str]:
    bounds = json.dumps(dataclasses.asdict(limits))
    return [str(paths.socket), bounds, json.dumps(list(preload)), tier or ""]

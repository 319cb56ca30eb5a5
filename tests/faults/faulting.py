"""A fault as the tests have it: a process, the n-th call of a kind, and what happens there."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TRACER = Path(__file__).with_name("tracer.py")


class Fault:
    """A tracer at work; see there."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._said: list[bytes] = []

    def met(self, word: bytes = b"hit") -> bool:
        """Wait until the call was met, or one of a kind; False if the tracer ended before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            if line.strip() == word:
                return True
        return False

    def release(self) -> None:
        """Let a process that is held go on."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()
        self._process.wait()

    def end(self) -> Counter[str]:
        """Trace no more; how many calls of each kind there were, and `hit` if one was met.

        A process that is held goes on: its tracer waits for a line and hears no signal meanwhile.
        """
        self._process.terminate()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdin = None
        self._process.wait()
        assert self._process.stdout is not None
        said = b"".join(self._said) + self._process.stdout.read()
        return Counter(said.decode().splitlines())


@contextlib.contextmanager
def fault(pid: int, calls: str, nth: int, action: str, scope: str = "self") -> Iterator[Fault]:
    """Have the n-th of these calls of a process meet its fate while the block runs."""
    arguments = (str(pid), calls, str(nth), action, scope)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(TRACER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n", "the process cannot be traced"
        yield Fault(process)
    finally:
        process.terminate()
        process.communicate()  # closes its pipes; a tracer that holds a process lets it go on

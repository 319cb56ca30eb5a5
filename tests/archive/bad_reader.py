"""A reader that does what a hostile file might make one do; run by test_archive."""

from __future__ import annotations

import os
import signal
import sys
import time

from atoll.agent.archive.confined import FRAME, serve
from atoll.errors import ArchiveError

_ANSWERS = 3
"""Where `serve` has its copy of standard output: the first that was free."""

kept: list[int] = []


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(3)


def eat():
    kept = []
    while True:
        kept.append(bytearray(64 << 20))


def flood():
    os.write(_ANSWERS, FRAME.pack(0, 0xFFFFFFFF))


def babble():
    os.write(_ANSWERS, FRAME.pack(3, 0) + b"[1]")


def deep():
    os.write(_ANSWERS, FRAME.pack(200_000, 0) + b"[" * 200_000)


def recurse():
    recurse()


def load():
    kept.append(os.memfd_create("x"))  # no file can be made later


def write():
    os.write(kept[0], b"x")


def say():
    print("answer?", flush=True)
    raise ArchiveError("there was no answer but this")


def spin():
    while True:
        pass


def sleep():
    time.sleep(60)


def main():
    assert sys.flags.isolated
    serve(
        {
            "crash": crash, "leave": leave, "eat": eat, "flood": flood, "babble": babble, "deep": deep,
            "recurse": recurse, "write": write, "print": say, "spin": spin, "sleep": sleep,
        },
        load,
    )  # fmt: skip

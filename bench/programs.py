"""Rows about `atoll exec`: a whole command that runs `true` in a jail, imports included."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from bench.rows import Arms, UnavailableError, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

OURS = "atoll exec true"
BWRAP = ("bwrap", "--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", "true")


@row(what=OURS, against="python -c pass", rounds=20)
def exec_python(_scale: Scale) -> Iterator[Arms]:
    yield from _beside(sys.executable, "-c", "pass")


@row(what=OURS, against="bwrap true", rounds=20)
def exec_bwrap(_scale: Scale) -> Iterator[Arms]:
    if shutil.which("bwrap") is None:
        raise UnavailableError("not installed: apt-get install bubblewrap")
    yield from _beside(*BWRAP)


@row(what=OURS, against="srt true", rounds=10)
def exec_srt(_scale: Scale) -> Iterator[Arms]:
    srt = shutil.which("srt")
    if srt is None:
        raise UnavailableError("not installed: npm install -g @anthropic-ai/sandbox-runtime")
    yield from _beside(srt, "true")


def _beside(*theirs: str) -> Iterator[Arms]:
    with tempfile.TemporaryDirectory() as folder:
        ours = (sys.executable, "-m", "atoll", "exec", "true")
        yield Arms(
            ours=timed(lambda: subprocess.run(ours, cwd=folder, check=True)),
            theirs=timed(lambda: subprocess.run(theirs, cwd=folder, check=True)),
        )

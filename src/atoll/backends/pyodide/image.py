"""The memory image that a guest starts from: Python up, the guest package imported. Built once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.backends.pyodide import deno, distribution
from atoll.errors import BackendUnavailableError
from atoll.jail.spec import GUEST_CODE
from atoll.launch.interpreter import GUEST_FOLDER

if TYPE_CHECKING:
    from atoll.backends.pyodide.deno import Deno
    from atoll.backends.pyodide.distribution import Distribution

SCRIPTS = str(Path(__file__).resolve().parent / "js")
BUILD_SECONDS = 120
UNUSED_SECONDS = 7 * 86_400
_WARM_UP = f"""
import ast, base64, collections, contextlib, copy, dataclasses, datetime, decimal, enum, functools
import hashlib, inspect, io, itertools, json, linecache, math, operator, os, pickle, random, re
import concurrent.futures, csv, dis, logging, opcode, pathlib, platform, statistics, string, struct
import sys, tempfile, textwrap, threading, time, traceback, types, typing, uuid, weakref, zlib
sys.path.append({GUEST_CODE!r})
from guest import dump, embedded, folder, interrupt, loop, pickler, pyodide, state, unpickler
sys.path.remove({GUEST_CODE!r})
"""


def find(pyodide: Distribution, runner: Deno) -> Path:
    """The image for this Pyodide, this guest package and this Deno; made if there is none."""
    name = f"image-{pyodide.key}-{_guest_digest()}-{runner.version}"
    path = distribution.private_folder() / name
    if not path.exists():
        with distribution.locked("image"):
            if not path.exists():
                _build(pyodide, runner, path)
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)  # it is in use
    return path


def _build(pyodide: Distribution, runner: Deno, path: Path) -> None:
    distribution.tell("building Pyodide's memory image, once ...")
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as scratch:
        target = f"{scratch}/image"
        _run(pyodide, runner, scratch, target)
        distribution.readable(Path(target))
        os.replace(target, path)
    _forget_old(path.parent)


def _forget_old(folder: Path) -> None:
    """Not those of another Atoll or Deno on this host: they would build in turns for ever."""
    for old in folder.glob("image-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > UNUSED_SECONDS:
                old.unlink()


def _run(pyodide: Distribution, runner: Deno, scratch: str, target: str) -> None:
    settings = {
        "pyodide": str(pyodide.folder),
        "snapshot": None,
        "folders": [{"source": GUEST_FOLDER, "target": f"{GUEST_CODE}/guest"}],
        "wheels": [],
        "target": target,
        "warmUp": _WARM_UP,
    }
    arguments = deno.arguments(
        f"{SCRIPTS}/snapshot.mjs",
        reads=[str(pyodide.folder), GUEST_FOLDER, SCRIPTS],
        v8=[],
        more=(f"--allow-write={target}",),
    )
    try:
        subprocess.run(
            [runner.path, *arguments, json.dumps(settings)],
            cwd=scratch,
            env={"DENO_DIR": scratch, "NO_COLOR": "1"},
            check=True,
            capture_output=True,
            timeout=BUILD_SECONDS,
        )
    except subprocess.CalledProcessError as exc:
        words = exc.stderr.decode(errors="replace").strip()[-1000:]
        raise _not_built(words) from None
    except (OSError, subprocess.SubprocessError) as exc:
        raise _not_built(str(exc)) from None


def _guest_digest() -> str:
    whole = hashlib.sha256(_WARM_UP.encode())
    for file in sorted([*Path(GUEST_FOLDER).glob("*.py"), *Path(SCRIPTS).glob("*.mjs")]):
        whole.update(hashlib.sha256(file.name.encode() + b"\0" + file.read_bytes()).digest())
    return whole.hexdigest()[:16]


def _not_built(why: str) -> BackendUnavailableError:
    return BackendUnavailableError(deno.BACKEND, f"Pyodide did not start to be imaged: {why}")

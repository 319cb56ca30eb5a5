"""The memory image that a guest starts from: Python up, the guest package imported. Built once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import selectors
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.backends.pyodide import deno, distribution
from atoll.backends.pyodide.deno import SCRIPTS
from atoll.backends.pyodide.launch import Parts, image_spec
from atoll.errors import BackendUnavailableError
from atoll.jail.measure import probe
from atoll.jail.supervisor.spec import GUEST_CODE
from atoll.launch.guest_handle import request_guest
from atoll.launch.interpreter import GUEST_FOLDER
from atoll.policy import Isolation

if TYPE_CHECKING:
    from atoll.backends.pyodide.deno import Deno
    from atoll.backends.pyodide.distribution import Distribution
    from atoll.launch.guest_handle import StartingGuest

BUILD_SECONDS = 120
MAX_BYTES = 256 << 20
CHUNK = 1 << 20
UNUSED_SECONDS = 7 * 86_400
_WARM_UP = f"""
import ast, base64, collections, contextlib, copy, dataclasses, datetime, decimal, enum, functools
import hashlib, inspect, io, itertools, json, linecache, math, operator, os, pickle, random, re
import concurrent.futures, csv, dis, logging, opcode, pathlib, platform, statistics, string, struct
import sys, tempfile, textwrap, threading, time, traceback, types, typing, uuid, weakref, zlib
sys.path.append({GUEST_CODE!r})
from guest.agent import chain, explorer
from guest.cells import loop
from guest.core import interrupt
from guest.entry import embedded, pyodide
from guest.state import dump, folder, keeper, pickler
from guest.agent import work_tools
from guest.agent import lazy, tools
from guest.cells import awaiting, compiling, ipython, magic_commands
from guest.core import variables
from guest.state import unpickler
sys.path.remove({GUEST_CODE!r})
"""


def find(pyodide: Distribution, runner: Deno) -> Path:
    """Return the image for this Pyodide, guest package and Deno; build it if there is none."""
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
    made = _make(Parts(runner, pyodide, None, ()))
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as scratch:
        target = Path(scratch) / "image"
        target.write_bytes(made)
        distribution.readable(target)
        target.replace(path)
    _forget_old(path.parent)


def _forget_old(folder: Path) -> None:
    """Delete unused images; recent ones may belong to another Atoll or Deno of this host."""
    for old in folder.glob("image-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > UNUSED_SECONDS:
                old.unlink()


def _make(parts: Parts) -> bytes:
    """Build it in a jail like a guest's. SECURITY: with `index_url`, its code is untrusted."""
    host = asyncio.run(probe.host())
    if host.level < Isolation.CONFINED:
        raise _not_built(host.failure)
    process = request_guest(image_spec(parts, host.level, _WARM_UP))
    try:
        said, words = _hear(process)
    finally:
        process.close()
    size, _, made = said.partition(b"\n")
    if not made or size != b"%d" % len(made):
        raise _not_built(words.decode(errors="replace").strip()[-1000:] or "it ended at once")
    return made


def _hear(process: StartingGuest) -> tuple[bytes, bytes]:
    """Return its stdout and stderr when it ends or exceeds the size limit."""
    heard = {fd: bytearray() for fd in (process.channel_fds[0], *process.output_fds)}
    deadline = time.monotonic() + BUILD_SECONDS
    with selectors.DefaultSelector() as selector:
        for fd in heard:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            if (left := deadline - time.monotonic()) <= 0:
                raise _not_built(f"it was not ready within {BUILD_SECONDS} s: is the machine busy?")
            for key, _ in selector.select(left):
                data = os.read(key.fd, CHUNK)
                heard[key.fd] += data
                if not data or len(heard[key.fd]) > MAX_BYTES:
                    selector.unregister(key.fd)
    return bytes(heard[process.channel_fds[0]]), bytes(heard[process.output_fds[1]])


def _guest_digest() -> str:
    whole = hashlib.sha256(_WARM_UP.encode())
    for file in sorted([*Path(GUEST_FOLDER).glob("*.py"), *Path(SCRIPTS).glob("*.mjs")]):
        whole.update(hashlib.sha256(file.name.encode() + b"\0" + file.read_bytes()).digest())
    return whole.hexdigest()[:16]


def _not_built(why: str) -> BackendUnavailableError:
    return BackendUnavailableError(deno.BACKEND, f"Pyodide did not start to be imaged: {why}")

"""The memory image that a guest starts from: Python up, the guest package imported. Built once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
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
from atoll.launch.interpreter import guest_digest
from atoll.packages.jailed import read_output
from atoll.policy import Isolation

if TYPE_CHECKING:
    from atoll.backends.pyodide.deno import Deno
    from atoll.backends.pyodide.distribution import Distribution

BUILD_SECONDS = 120
MAX_BYTES = 256 << 20
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
from guest.agent import tool_modules, work_tools
from guest.agent import lazy, tools
from guest.cells import awaiting, compiling, ipython, magic_commands
from guest.core import variables
sys.path.remove({GUEST_CODE!r})
"""


def find(pyodide: Distribution, runner: Deno) -> Path:
    """Return the image for this Pyodide, guest package and Deno; build it if it is missing."""
    name = f"image-{pyodide.key}-{_sources_digest()}-{runner.version}"
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
        said, words = read_output(process, BUILD_SECONDS, MAX_BYTES)
    except TimeoutError:
        reason = f"it was not ready within {BUILD_SECONDS} s: is the machine busy?"
        raise _not_built(reason) from None
    finally:
        process.close()
    size, _, made = said.partition(b"\n")
    if not made or size != b"%d" % len(made):
        raise _not_built(words.decode(errors="replace").strip()[-1000:] or "it ended at once")
    return made


def _sources_digest() -> str:
    whole = hashlib.sha256((_WARM_UP + guest_digest()).encode())
    for file in sorted(Path(SCRIPTS).glob("*.mjs")):
        whole.update(hashlib.sha256(file.name.encode() + b"\0" + file.read_bytes()).digest())
    return whole.hexdigest()[:16]


def _not_built(why: str) -> BackendUnavailableError:
    return BackendUnavailableError(deno.BACKEND, f"Pyodide did not start to be imaged: {why}")

"""The host's Python for images that have none: its files beside the image's, and its own loader.

    /opt/atoll/python    the installation: its executable and its standard library
    /opt/atoll/lib/N     folders of the shared libraries that it loads, and of the loader

The loader is started with the interpreter as its argument, as the image may have another C library
or none. Programs that the guest starts do not get these libraries: they find the image's.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import BackendUnavailableError
from atoll.jail.supervisor.spec import GUEST_CODE, Bind
from atoll.launch.interpreter import Interpreter, resolve

if TYPE_CHECKING:
    from atoll.launch.interpreter import RootImage

NAME = "host"
"""What `python` is to be, so that cells run by it."""
_PLACE, _LIBRARIES = f"{GUEST_CODE}/python", f"{GUEST_CODE}/lib"
_LOADER = re.compile(rb"/[\w./-]*/ld[\w.-]*\.so[\w.]*\0")
_HEAD = 1 << 16
_LOADED = re.compile(r"(/\S+) \(0x")
_MODULES = ("_ssl", "_ctypes", "_sqlite3", "_bz2", "_lzma", "zlib", "_hashlib", "readline")


def in_image(image: RootImage, *, cells: bool) -> Interpreter:
    """Return this machine's Python as one of an image; `cells`: whether it runs cells, too."""
    carried = _carried()
    return replace(carried, image=image, cells=cells)


@functools.cache
def _carried() -> Interpreter:
    version = resolve(None).version
    prefix, name = sys.base_prefix, f"python{version[0]}.{version[1]}"
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    loader = _loader_of(program)
    library = Path(prefix, "lib", name)
    modules = [
        path for module in _MODULES for path in glob.glob(f"{library}/lib-dynload/{module}.*.so")
    ]
    loaded = {
        os.path.dirname(path) for file in (program, *modules) for path in _loads(loader, file)
    }
    folders = sorted({os.path.realpath(folder) for folder in (*loaded, os.path.dirname(loader))})
    places = {folder: f"{_LIBRARIES}/{number}" for number, folder in enumerate(folders)}
    binds = [Bind(source=folder, target=place) for folder, place in places.items()]
    binds.append(Bind(source=prefix, target=_PLACE))
    inside = os.path.join(_PLACE, os.path.relpath(program, prefix))
    real = os.path.realpath(loader)
    start = f"{places[os.path.dirname(real)]}/{os.path.basename(real)}"
    words = (start, "--library-path", ":".join(places.values()), "--argv0", inside)
    return Interpreter(
        inside, version, (), (), program, _PLACE, launcher=words, carried=tuple(binds)
    )


def _loader_of(program: str) -> str:
    """Return the loader that an executable names in its first page."""
    with open(program, "rb") as file:
        loader = _LOADER.search(file.read(_HEAD))
    if loader is None or not os.path.exists(loader[0][:-1]):
        reason = f"this machine's Python, {program}, cannot be carried into an image"
        raise BackendUnavailableError("native", reason, "Use an image with Python 3.8 or newer.")
    return os.fsdecode(loader[0][:-1])


def _loads(loader: str, file: str) -> list[str]:
    """Return the shared libraries that a file of this machine loads."""
    done = subprocess.run([loader, "--list", file], capture_output=True, text=True, check=False)
    return [path for path in _LOADED.findall(done.stdout) if path != file]

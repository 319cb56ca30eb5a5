"""The guest as a WebAssembly component: imported at build time, and frozen with its modules.

At build time this imports the runtime and what cells use most, and packs the whole standard library
as compiled code into a dict, because the finished component has no files of its own.
"""

from __future__ import annotations

import gc
import os
import random
import sys

import guest.awaiting  # type: ignore[import-not-found]
import guest.chain  # type: ignore[import-not-found]
import guest.compiling  # type: ignore[import-not-found]
import guest.explorer  # type: ignore[import-not-found]
import guest.ipython  # type: ignore[import-not-found]
import guest.lazy  # type: ignore[import-not-found]
import guest.loop  # type: ignore[import-not-found]
import guest.magic_commands  # type: ignore[import-not-found]
import guest.state  # type: ignore[import-not-found]
import guest.tools  # type: ignore[import-not-found]
import guest.variables  # type: ignore[import-not-found]
import guest.work_tools  # type: ignore[import-not-found]
import library  # type: ignore[import-not-found]
import wit_world  # type: ignore[import-not-found]
from guest.embedded import EmbeddedGuest  # type: ignore[import-not-found]
from interruption import WasmGate  # type: ignore[import-not-found]
from port import WasmPort  # type: ignore[import-not-found]

FOLDER = "/app"

library.pack()
library.preload()
guest.loop.install()


class WitWorld(wit_world.WitWorld):  # type: ignore[misc]
    """The functions that the host calls."""

    guest: EmbeddedGuest | None = None

    def handle(self, line: str) -> str:
        """Return the answer to a request."""
        if WitWorld.guest is None:
            WitWorld.guest = _start_guest()
        answer: str = WitWorld.guest.handle(line) if line else WitWorld.guest.rehearse()
        return answer


def _start_guest() -> EmbeddedGuest:
    """Reset what the build has frozen (random seed, importer caches), and return a new guest."""
    random.seed(os.urandom(16))
    sys.path_importer_cache.clear()
    os.chdir(FOLDER)
    port = WasmPort()
    os._exit = port.leave
    return EmbeddedGuest(port, WasmGate(port), FOLDER)


sys.path[:] = []
gc.collect()
gc.freeze()

"""The guest as a WebAssembly component: imported at build time, and frozen with its modules.

At build time this imports the runtime and what cells use most, and packs the whole standard library
as compiled code into a dict, because the finished component has no files of its own.
"""

from __future__ import annotations

import gc
import os
import random
import sys

import guest.agent.chain  # type: ignore[import-not-found]
import guest.agent.explorer  # type: ignore[import-not-found]
import guest.agent.lazy  # type: ignore[import-not-found]
import guest.agent.tool_modules  # type: ignore[import-not-found]
import guest.agent.tools  # type: ignore[import-not-found]
import guest.agent.work_tools  # type: ignore[import-not-found]
import guest.cells.awaiting  # type: ignore[import-not-found]
import guest.cells.compiling  # type: ignore[import-not-found]
import guest.cells.ipython  # type: ignore[import-not-found]
import guest.cells.loop  # type: ignore[import-not-found]
import guest.cells.magic_commands  # type: ignore[import-not-found]
import guest.core.variables  # type: ignore[import-not-found]
import guest.state.keeper  # type: ignore[import-not-found]
import library  # type: ignore[import-not-found]
import wit_world  # type: ignore[import-not-found]
from guest.entry.embedded import EmbeddedGuest  # type: ignore[import-not-found]
from interruption import WasmGate  # type: ignore[import-not-found]
from port import WasmPort  # type: ignore[import-not-found]

FOLDER = "/app"

library.pack()
library.preload()
guest.cells.loop.install()


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

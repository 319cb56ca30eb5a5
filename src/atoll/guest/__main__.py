"""Start of the guest as a process: the host's channel comes as stdin and stdout.

It is moved away from there before any guest code runs, to high descriptors that no child
inherits, so nothing that is printed can be taken for a message.
"""

from __future__ import annotations

import os
import resource
import sys

from .core.channel import Channel
from .core.hidden import HiddenPackage
from .core.interrupt import InterruptGate
from .core.streams import StandardStreams, complain
from .entry.process import ProcessServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .shared.messages import Names

OUTPUT_FD = 3
BROKEN_EXIT = 70
"""The exit code of a guest whose runtime no longer works."""
HIGH_FDS = 16
USUAL_FDS = 1024
"""The limit of descriptors that most guests have."""


def hide_runtime() -> HiddenPackage:
    """Take this package out of the modules that guest code sees.

    A zygote does it for all its guests: to go through the names of a thousand modules is to write
    to the pages that they are on, and so to copy each of them.
    """
    runtime = HiddenPackage((__package__ or "guest").partition(".")[0])
    runtime.hide()
    return runtime


class Guest:
    """The parts of a guest, without descriptors yet: a zygote makes them once for all its guests.

    `preloaded` are modules that guest code finds among its globals by these names.
    """

    def __init__(self, folder: str, preloaded: Names | None = None) -> None:
        gate = InterruptGate()
        self._channel, self._streams = Channel(-1, -1, gate), StandardStreams()
        self._server = ProcessServer(
            self._channel, gate, self._streams, folder, runtime=hide_runtime()
        )
        self._server.preload(preloaded or {})
        sys.path.append(folder)  # last: a file of the guest's never stands in for a library
        self._high = 0

    def rehearse(self) -> None:
        """Do once, in a zygote, what every guest would do first."""
        self._server.rehearse()

    def run(self, memory_bytes: int | None = None, inherited: int = 0) -> NoReturn:
        """Serve the channel on descriptors 0 and 1; guest output goes to 3 (stdout) and 2."""
        self.begin(memory_bytes, inherited)
        os.register_at_fork(after_in_child=self._channel.close_in_child)
        try:
            self._server.serve()
        except BaseException as exc:  # what guest code has broken cannot be mended: end honestly
            complain("the session has ended: {}: {}".format(type(exc).__name__, exc))
            os._exit(BROKEN_EXIT)
        os._exit(0)

    def begin(self, memory_bytes: int | None, inherited: int) -> None:
        """Move the descriptors to where they belong, and set the memory limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        high = max(HIGH_FDS, min(soft, 4096) - HIGH_FDS)
        if high != self._high:
            self._expect_descriptors(high)
        os.dup2(0, high, False)
        os.dup2(1, high + 1, False)
        os.dup2(OUTPUT_FD, high + 2, False)
        os.dup2(2, high + 3, False)
        os.dup2(OUTPUT_FD, 1)
        os.close(OUTPUT_FD)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._server.begin(memory_bytes, inherited)

    def settle(self) -> None:
        """Note, in a zygote that is about to serve, what is the same in most of its guests."""
        self._expect_descriptors(USUAL_FDS - HIGH_FDS)
        self._server.measure()

    def _expect_descriptors(self, high: int) -> None:
        """Use the numbers from `high` on, whatever is open there yet."""
        self._high = high
        self._channel.reopen(high, high + 1)
        self._streams.expect(high, high + 2, high + 3)


def main(folder: str) -> NoReturn:
    """Run a guest in its working folder."""
    Guest(folder).run()

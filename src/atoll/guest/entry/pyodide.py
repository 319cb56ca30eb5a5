"""The guest inside Pyodide: started by the thread that holds it, without a way to JavaScript."""

from __future__ import annotations

import sys

from ..cells import loop
from ..core.interrupt import InterruptGate
from .embedded import EmbeddedGuest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

    from .embedded import Port

BRIDGES = ("js", "pyodide_js")


def boot(port: Port, folder: str) -> Callable[[str], str]:
    """Return the server. Reseed `random`, since Python's memory may be an image."""
    import random

    random.seed()
    forget_javascript()
    loop.install()
    gate = RequestGate()
    guest = EmbeddedGuest(port, gate, folder)

    def handle(line: str) -> str:
        gate.begin()
        return guest.handle(line)

    return handle


class RequestGate(InterruptGate):
    """For a host that interrupts only while a request is open: what comes early is for its cell.

    Python in WebAssembly is slow enough to be interrupted before it has begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self._early, self._ended = False, True
        self._install()

    def begin(self) -> None:
        """Note that a request has come."""
        self._early = self._ended = False

    def run(self, work: Callable[[], Any], on_interrupt: Callable[[], Any]) -> Any:
        """Return `work()`; `on_interrupt()` if it was interrupted, also before it began."""
        try:
            return super().run(lambda: self._unless_early(work), on_interrupt)
        finally:
            self._ended = True

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Handle SIGINT, or keep it for the cell that is about to begin."""
        if not self._open and not self._ended:
            self._early = True
        super().on_signal(signum, frame)

    def _unless_early(self, work: Callable[[], Any]) -> Any:
        if self._early:
            raise KeyboardInterrupt
        return work()


def forget_javascript() -> None:
    """Take out the modules that lead to JavaScript, and what others have taken from them.

    SECURITY: hygiene, no wall. Code that gets there in another way finds a thread without rights.
    """
    for finder in [importer for importer in sys.meta_path if "JsFinder" in type(importer).__name__]:
        sys.meta_path.remove(finder)
        vars(finder)["jsproxies"].clear()  # functions of pyodide.ffi lead to it
    for name in [name for name in sys.modules if name.partition(".")[0] in BRIDGES]:
        spec = getattr(sys.modules.pop(name), "__spec__", None)
        if spec is not None:
            vars(spec.loader).clear()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("pyodide", "_pyodide"):
            _forget_proxies(vars(module))


def _forget_proxies(namespace: dict[str, object]) -> None:
    proxy = sys.modules["pyodide.ffi"].JsProxy
    for name in [name for name, value in namespace.items() if isinstance(value, proxy)]:
        del namespace[name]

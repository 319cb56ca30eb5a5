"""A soft memory limit, so that code meets a MemoryError before the kernel has to end it.

The kernel counts address space that may be written (RLIMIT_DATA), and libraries reserve a lot
that they never touch. So before each cell, and each start of a thread, the soft limit is set to
what is allowed on top of what is only reserved now. gVisor's kernel counts and limits all address
space instead (RLIMIT_AS). The walls that hold against hostile code are outside: control group,
meter.
"""

from __future__ import annotations

import _thread
import os
import sys

from . import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

resource: Any
try:
    import resource
except ImportError:  # WebAssembly has no such limits
    resource = None

MARGIN = 64 << 20
_FIELDS = (0, 1, 2, 5)
"""Of statm: size, resident, shared, data."""


class MemoryFence:
    """Keeps the soft memory limit up to date, if there is a limit."""

    def __init__(self, limit: int | None, inherited: int = 0) -> None:
        self._measured = (0, 0)
        self.allow(limit, inherited)

    def allow(self, limit: int | None, inherited: int = 0) -> None:
        """Allow so much on top of what is `inherited`, from the next `renew` on."""
        self._limit = None if limit is None else limit + inherited

    def measure(self) -> None:
        """Measure now, in a zygote, what its guests will have only reserved when they start."""
        self._measured = _only_reserved()

    def renew(self, room: int = 0, measured: bool = False) -> None:
        """Set the soft limit for what comes next, with `room` that will only be reserved.

        `measured`: as `measure` found it. To measure again takes a guest ten pages.
        """
        if self._limit is None or resource is None:
            return
        try:
            kind, reserved = self._measured if measured else _only_reserved()
            _, hard = resource.getrlimit(kind)
            soft = self._limit + MARGIN + reserved + room
            if hard != resource.RLIM_INFINITY:
                soft = min(soft, hard)
            resource.setrlimit(kind, (soft, hard))
        except (OSError, ValueError):
            return  # no such limits here: what is outside has to do


def serve_threads(renew: Callable[[int], None]) -> None:
    """Call `renew(bytes of a stack)` before each start of a thread: stacks are hardly touched."""
    import _thread as shown

    for name in ("start_new_thread", "start_joinable_thread"):  # the second from Python 3.13 on
        real = getattr(shown, name, None)
        if real is None or hasattr(real, "__wrapped__"):
            continue
        starter = _with_room(real, renew)
        vars(shown)[name] = vars(_thread)[name] = starter
        if "threading" in sys.modules:  # which has a copy, under a private name
            vars(sys.modules["threading"])["_" + name] = starter


def _with_room(real: Callable[..., Any], renew: Callable[[int], None]) -> Callable[..., Any]:
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)

    def start(*args: Any, **kwargs: Any) -> Any:
        renew(_thread.stack_size() or max(stack, 0))
        return real(*args, **kwargs)

    start.__doc__ = real.__doc__
    start.__wrapped__ = real  # type: ignore[attr-defined]
    return start


def held() -> int:
    """Return the private memory of this process in bytes; 0 if /proc cannot be read."""
    try:
        _, resident, shared, _ = _pages()
    except OSError:
        return 0
    return resident - shared


def _only_reserved() -> tuple[int, int]:
    """The limit to set, and the bytes that it counts and that are not memory of the guest's."""
    size, resident, shared, data = _pages()
    if data == 0:  # not counted: gVisor
        return resource.RLIMIT_AS, size - max(0, resident - sum(context.MAPPED))
    return resource.RLIMIT_DATA, max(0, data - (resident - shared))


def _pages() -> tuple[int, int, int, int]:
    """What is mapped, resident, shared of that, and mapped to be written, in bytes."""
    fd = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        pages = [int(field) for field in os.read(fd, 200).split()]
    finally:
        os.close(fd)
    page = resource.getpagesize()
    mapped, resident, shared, data = (pages[at] * page for at in _FIELDS)
    return mapped, resident, shared, data

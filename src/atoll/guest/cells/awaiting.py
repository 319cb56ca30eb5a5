"""Runs the coroutines of cells on one event loop that lasts for the session.

The loop runs only while a cell awaits: between cells its tasks stand still, and a cell without
`await` may call asyncio.run() as in any script.
"""

# ruff: noqa: SLF001 - a loop has no public way to renew its descriptors
from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Coroutine

CLEANUP_SECONDS = 0.1
"""What an interrupted cell has for its `finally` and `async with` blocks."""


class SessionLoop:
    """An event loop that is made when a cell first awaits."""

    def __init__(self) -> None:
        self._loop: Any = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and return its value; an interrupt cancels it."""
        try:
            import asyncio

            loop = self._usable()
            asyncio.set_event_loop(loop)
            task = loop.create_task(coroutine)
        except BaseException:  # an interrupt may come while asyncio is loaded
            coroutine.close()
            raise
        try:
            return loop.run_until_complete(task)
        except BaseException as exc:
            if not task.done():
                _cancel(loop, task, exc)
            raise

    def waiting_tasks(self) -> int:
        """Return how many tasks have not ended."""
        import asyncio

        return 0 if self._loop is None else len(asyncio.all_tasks(self._loop))

    def renew_in_clone(self) -> None:
        """Give the loop descriptors of its own: those that a fork copied are the parent's too."""
        if self._loop is None:
            return
        try:
            _renew_descriptors(self._loop)
        except Exception:
            self._loop = None  # not a loop that can be mended: the next cell gets a new one

    def _usable(self) -> Any:
        """Return the loop; a new one if there is none, or guest code has broken it."""
        import asyncio

        if self._loop is None or self._loop.is_closed() or _has_lost_descriptor(self._loop):
            self._loop = asyncio.new_event_loop()
        return self._loop


def _cancel(loop: Any, task: Any, exc: BaseException) -> None:
    """Cancel what an interrupt has left unfinished; show the interrupt where the cell waited."""
    import asyncio

    task.cancel()
    loop.run_until_complete(asyncio.wait({task}, timeout=CLEANUP_SECONDS))
    if not task.done():
        return  # it goes on when the next cell awaits
    try:
        task.result()
    except asyncio.CancelledError as cancelled:
        exc.__traceback__ = cancelled.__traceback__ or exc.__traceback__
    except BaseException:
        pass  # raised while it was cleaning up: the interrupt is what counts


def _has_lost_descriptor(loop: Any) -> bool:
    number = getattr(getattr(loop, "_selector", None), "fileno", None)
    if number is None:
        return False
    try:
        os.fstat(number())
    except (OSError, ValueError):
        return True
    return False


def _renew_descriptors(loop: Any) -> None:
    """Replace selector and wake-up socket; tasks, timers and registered files stay.

    The old selector must not be changed: the kernel's object behind it is the parent's as well.
    """
    old, new = loop._selector, type(loop._selector)()
    for key in list(old.get_map().values()):
        new.register(key.fd, key.events, key.data)
    loop._selector = new
    loop._close_self_pipe()
    loop._make_self_pipe()
    loop._default_executor = None  # its threads have stayed with the parent
    old.close()

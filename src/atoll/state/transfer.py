"""Transfers a saved state between host and guest, through a pipe whose other end the guest gets.

    save     guest ──pipe──▶ host, which stores no more than the cap
    restore  host ──pipe──▶ guest, as fast as it reads

SECURITY: the bytes are the guest's. The host stores them and passes them on, but never parses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from atoll.errors import SandboxError, StateError, StateTooLargeError
from atoll.extras import hint as install_hint
from atoll.guest.state.pickler import NEEDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.guest.shared.messages import StateParams
    from atoll.sandbox.session import GuestSession

CHUNK = 1 << 20
SLACK = 1 << 20
"""Bytes that a guest may send above the cap: it counts before it compresses."""


class Giver(Protocol):
    """Passes file descriptors to the guest."""

    def give(self, *fds: int) -> None:
        """Pass descriptors, which the guest takes when it asks."""


@runtime_checkable
class Collecting(Protocol):
    """Receives the guest's bytes as messages, where descriptors cannot be passed."""

    def collect(self, into: Callable[[bytes], None] | None) -> None:
        """Call `into` with the bytes that the guest sends from now on; None stops it."""


class Collected:
    """Collects the bytes that the guest sends as messages, up to the cap."""

    def __init__(self, giver: Collecting, cap: int) -> None:
        self._giver, self._data, self._cap = giver, bytearray(), cap

    def __enter__(self) -> Self:
        self._giver.collect(self._on_data)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._giver.collect(None)

    def finish(self, size: int) -> bytes:
        """Return the bytes; StateError if they are not `size`, which the guest sends after them."""
        return _whole(self._data, size, self._cap)

    def _on_data(self, data: bytes) -> None:
        if len(self._data) <= self._cap:
            self._data += data


class _Pipe:
    """A pipe between host and guest; both ends are closed after the `with` block."""

    def __init__(self, giver: Giver, *, guest_reads: bool) -> None:
        try:
            read, write = os.pipe2(os.O_CLOEXEC)
        except OSError as exc:
            raise StateError(f"the state cannot be moved: {exc}") from exc
        self._fd, theirs = (write, read) if guest_reads else (read, write)
        self._loop = asyncio.get_running_loop()
        try:
            giver.give(theirs)
        except BaseException as exc:
            os.close(self._fd)
            if isinstance(exc, SandboxError):
                raise StateError(str(exc)) from None
            raise
        finally:
            os.close(theirs)
        os.set_blocking(self._fd, False)
        with contextlib.suppress(PermissionError):  # the user has reached the limit of pipe memory
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, CHUNK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._close()

    def _close(self) -> None:
        """Close the host's end: the guest sees a broken pipe, or EOF."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1


class Inflow(_Pipe):
    """Reads what the guest writes; over the cap the pipe is closed."""

    def __init__(self, giver: Giver, cap: int) -> None:
        super().__init__(giver, guest_reads=False)
        self._data, self._cap = bytearray(), cap
        self._loop.add_reader(self._fd, self._on_readable)

    def finish(self, size: int) -> bytes:
        """Return the bytes; StateError if they are not `size`, which the guest sends after them."""
        while self._on_readable():
            pass
        return _whole(self._data, size, self._cap)

    def _on_readable(self) -> bool:
        """Read the available bytes; return whether there may be more."""
        if self._fd < 0:
            return False
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return False
        self._data += data
        if not data or len(self._data) > self._cap:
            self._close()
        return self._fd >= 0


class Outflow(_Pipe):
    """Writes bytes to the guest, as fast as it reads them."""

    def __init__(self, giver: Giver, data: memoryview) -> None:
        super().__init__(giver, guest_reads=True)
        self._left = data
        self._loop.add_writer(self._fd, self._on_writable)

    def _on_writable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._left = self._left[os.write(self._fd, self._left[:CHUNK]) :]
            except BrokenPipeError:
                self._left = self._left[:0]
        if not self._left:
            self._close()


async def save(
    session: GuestSession, giver: Giver, params: StateParams, timeout_ms: float
) -> tuple[bytes, dict[str, Any]]:
    """Return the guest's state and its description; StateError if it cannot be saved."""
    cap = params["max_bytes"]
    with _inflow(giver, cap + SLACK) as inflow:
        facts = await session.ask("save", params, timeout_ms)
        if facts.get("too_large"):
            raise _too_large(facts, cap)
        size = facts.get("stored")
        return inflow.finish(size if isinstance(size, int) else -1), facts


def _inflow(giver: Giver, cap: int) -> Inflow | Collected:
    return Collected(giver, cap) if isinstance(giver, Collecting) else Inflow(giver, cap)


def _whole(data: bytearray, size: int, cap: int) -> bytes:
    if len(data) != size or size > cap:
        raise StateError("the guest sent other bytes of state than it said")
    return bytes(data)


async def restore(
    session: GuestSession, giver: Giver, payload: memoryview, params: StateParams, timeout_ms: float
) -> None:
    """Restore a state in a guest that has run nothing yet; StateError if that fails."""
    with Outflow(giver, payload):
        try:
            answer = await session.ask("restore", params, timeout_ms)
        except StateError as exc:
            if NEEDED not in str(exc):
                raise
            raise StateError(f"{exc}. {install_hint('state')}") from None
    if "restored" not in answer:
        raise StateError("the guest did not restore its state")


def _too_large(facts: dict[str, Any], cap: int) -> StateTooLargeError:
    """Return the error for a state that is too large; shows only numbers and short texts."""
    text = f"the state is larger than {cap:,} bytes and was not saved"
    try:
        parts = [f"{str(name)[:80]!r} {int(size):,}" for name, size in facts["largest"][:5]]
        size = int(facts["size"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return StateTooLargeError(text, limit=cap)
    text += f": it has {size:,} bytes, the largest are {', '.join(parts)} (max_state_bytes)"
    return StateTooLargeError(text, limit=cap, size=size)

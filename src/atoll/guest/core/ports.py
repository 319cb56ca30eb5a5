"""What a guest needs of the place it runs in; each backend brings its own."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Protocol

    from ..shared.rpc import Message

    class Gate(Protocol):
        """Decides when an interrupt may reach guest code."""

        def run(self, work: Callable[[], Any], on_interrupt: Callable[[], Any]) -> Any:
            """`work()`, interruptible; `on_interrupt()` if an interrupt left it."""
            ...

    class Calls(Protocol):
        """Asks the host."""

        def call(self, method: str, params: Message) -> Any:
            """The host's answer."""
            ...

    class Streams(Protocol):
        """What guest code prints to."""

        def renew(self) -> None:
            """As on the first day."""
            ...

        def flush(self) -> None:
            """Push out what was printed."""
            ...

    class Stream(Protocol):
        """A saved state on its way."""

        def write(self, data: memoryview) -> int:
            """Hand over some of it; how much was taken."""
            ...

        def readinto(self, room: memoryview) -> int:
            """Fill some of the room; how much, nothing at the end."""
            ...

        def close(self) -> None:
            """No more."""
            ...

    class PassedData(Protocol):
        """Data that the host passes beside its messages."""

        def text(self, width: int, length: int, ascii_only: bool) -> tuple[str, bool]:
            """The context, and whether it is shared instead of copied."""
            ...

        def stream(self) -> Stream:
            """Where a saved state goes to, or comes from."""
            ...

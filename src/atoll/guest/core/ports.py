"""What a guest needs of the place it runs in; each backend brings its own."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Protocol

    from ..shared.rpc import Message

    class Gate(Protocol):
        """Decides when an interrupt may reach guest code."""

        def run(self, work: Callable[[], Any], on_interrupt: Callable[[], Any]) -> Any:
            """Return `work()`, which may be interrupted; then return `on_interrupt()`."""
            ...

    class Calls(Protocol):
        """Asks the host."""

        def call(self, method: str, params: Message) -> Any:
            """Call the host and return its answer."""
            ...

    class Streams(Protocol):
        """What guest code prints to."""

        def renew(self) -> None:
            """Restore the streams."""
            ...

        def flush(self) -> None:
            """Flush the streams."""
            ...

    class Stream(Protocol):
        """A saved state on its way."""

        def write(self, data: memoryview) -> int:
            """Write some of the data; return how many bytes."""
            ...

        def readinto(self, room: memoryview) -> int:
            """Read into `room`; return how many bytes, 0 at the end."""
            ...

        def close(self) -> None:
            """Close the stream."""
            ...

    class PassedData(Protocol):
        """Data that the host passes beside its messages."""

        def text(self, width: int, length: int, ascii_only: bool) -> tuple[str, bool]:
            """Return the context, and whether it is shared instead of copied."""
            ...

        def stream(self) -> Stream:
            """Return the stream of a saved state."""
            ...

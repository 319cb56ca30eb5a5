"""Files that only the guest itself can reach: it is asked, and not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError
from atoll.files.answers import checked
from atoll.files.base import Files
from atoll.files.types import FileError
from atoll.guest.rpc import MessageTooLargeError
from atoll.session import MAX_FILE_IN_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


class GuestFiles(Files):
    """Every operation is a request to the guest."""

    def __init__(self, ask: Callable[[str, Mapping[str, Any]], Awaitable[object]]) -> None:
        self._request = ask

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        if len(params.get("data", b"")) > MAX_FILE_IN_MESSAGE:
            return {"error": FileError.TOO_LARGE}
        try:
            return checked(operation, await self._request(operation, params))
        except MessageTooLargeError as exc:
            raise SandboxError(f"{operation}: {exc}") from None

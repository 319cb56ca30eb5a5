"""Contexts on a service: the same bytes are uploaded once for all sandboxes of a connection.

The last sandbox that has a context deletes it; it would count against the key until it expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.errors import AtollError
from atoll.guest.shared import values
from atoll.sandbox.wire import answers

if TYPE_CHECKING:
    from atoll.backends.remote.connection import RemoteConnection
    from atoll.sandbox.context import Context


@dataclass(eq=False, slots=True)
class Upload:
    """A context on the service, and how many sandboxes have it."""

    digest: str
    users: int = 0
    ident: str | None = None
    """Its id on the service; None until it is there."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Uploads:
    """The contexts that the sandboxes of one connection have on its service."""

    def __init__(self) -> None:
        self._by_digest: dict[str, Upload] = {}
        self._digests: weakref.WeakKeyDictionary[Context, str] = weakref.WeakKeyDictionary()

    async def hold(self, connection: RemoteConnection, shared: Context) -> Upload:
        """Upload a context, unless its bytes are there already; `drop` it when it is not used."""
        content = None
        if shared not in self._digests:
            content, digest = await asyncio.to_thread(_read, shared)
            self._digests[shared] = digest
        digest = self._digests[shared]
        upload = self._by_digest.setdefault(digest, Upload(digest))
        upload.users += 1
        try:
            async with upload.turn:
                if upload.ident is None:
                    content = content or (await asyncio.to_thread(_read, shared))[0]
                    upload.ident = await _send(connection, content, is_json=_is_json(shared))
        except BaseException:
            await self.drop(connection, upload)
            raise
        return upload

    def share(self, upload: Upload) -> Upload:
        """Count one more sandbox that has an upload."""
        upload.users += 1
        return upload

    async def drop(self, connection: RemoteConnection, upload: Upload) -> None:
        """Let go of an upload; the last one to do so deletes it."""
        upload.users -= 1
        async with upload.turn:
            if upload.users:
                return
            ident, upload.ident = upload.ident, None
            if self._by_digest.get(upload.digest) is upload:
                del self._by_digest[upload.digest]
            if ident is None:
                return
            with contextlib.suppress(AtollError):  # it has expired, or the service has gone
                await connection.call("DELETE", f"/contexts/{ident}")


def _is_json(shared: Context) -> bool:
    return bool(shared.describe()["json"])


def _read(shared: Context) -> tuple[bytes, str]:
    """Return the bytes of a context, and the digest of them and of their kind."""
    is_json = _is_json(shared)
    if is_json:
        text = json.dumps(values.encode(shared.value, 1 << 40, 1 << 50, strict=True))
        content = text.encode()
    else:
        content = str(shared.value).encode("utf-8", "surrogatepass")
    kind = b"json" if is_json else b"text"
    return content, hashlib.sha256(kind + content).hexdigest()


async def _send(connection: RemoteConnection, content: bytes, *, is_json: bool) -> str:
    kind = "application/json" if is_json else "text/plain; charset=utf-8"
    made = await connection.call(
        "POST", "/contexts", content=content, headers={"content-type": kind}
    )
    return answers.field(made, "id", str)

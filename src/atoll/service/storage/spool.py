"""Uploads on their way to a sandbox or a store: in a file without a name, not in memory.

A client may take minutes for the last byte of a file. Until then its bytes are on disk, in the
service's folder, counted against the second budget (`spool_bytes`, `tenant_spool_bytes`).
"""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from typing import TYPE_CHECKING, Any, Self

from atoll.files.base import request
from atoll.files.direct import FolderFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.files.base import Files
    from atoll.service.http.requests import ApiRequest


class Spool:
    """The bytes of one upload, until the `with` block ends."""

    def __init__(self, call: ApiRequest) -> None:
        service = call.service
        self._held = service.disk.admit(call.principal, 0, "an upload")
        self._memory = service.memory.admit(call.principal, 0, "an upload")
        self._file = tempfile.TemporaryFile(dir=service.settings.folder)  # noqa: SIM115 - closed below
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()
        self._held.release()
        self._memory.release()

    async def fill(self, pieces: AsyncIterator[bytes]) -> Self:
        """Take all pieces; return this."""
        async for piece in pieces:
            self._held.grow(len(piece))
            self.size += len(piece)
            self._file.write(piece)
        self._file.flush()
        return self

    async def read(self) -> bytes:
        """Return all of it, which takes memory until the block ends; 429 if it does not fit."""
        self._memory.resize(self.size)
        self._file.seek(0)
        return await asyncio.to_thread(self._file.read)

    async def store(self, files: Files, path: str) -> dict[str, Any]:
        """Write it to a file of a sandbox; return the plain answer of the operation.

        Folders of this machine are written from the mapped file, which takes no memory of ours.
        """
        if not isinstance(files, FolderFiles) or not self.size:
            data: Any = await self.read()
        else:  # unmapped with the last reference: a thread may write it for longer than we wait
            data = memoryview(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ))
        return await request(files, "upload", {"path": path, "data": data})

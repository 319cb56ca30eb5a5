"""Where the bytes of states, contexts and files are: a folder, or a store with a folder in front.

Bytes are named by their SHA-256, and checked against it when they come back from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any, Protocol

from atoll.concurrency.background import Background
from atoll.errors import ConfigError
from atoll.extras import hint
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.service.settings import ServiceSettings

_LOG = logging.getLogger("atoll.service")
_PIECE = 8 << 20
Facts = dict[str, Any]
"""The published facts of an object: a row of the table `objects`."""


class Blobs(Protocol):
    """Keeps bytes by their digest, and small facts by a name."""

    def draft(self) -> Path:
        """Return the path of a file that is about to be written."""
        ...

    async def keep(self, draft: Path, digest: str, name: str) -> None:
        """Keep the written bytes as the object `name`."""

    async def fetch(self, digest: str, name: str) -> Path | None:
        """Return a file of these bytes; None if they are nowhere."""
        ...

    def drop(self, digest: str) -> None:
        """Delete bytes that no object of this service has any more."""

    async def publish(self, name: str, facts: Facts) -> None:
        """Let other replicas know of an object."""

    def forget(self, name: str) -> None:
        """Let no other replica find an object any more."""

    async def lookup(self, name: str) -> Facts | None:
        """Return the facts that another replica published; None if there are none."""
        ...


class FolderBlobs:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        for draft in folder.glob("*.draft"):
            draft.unlink(missing_ok=True)

    def draft(self) -> Path:
        """Return the path of a file that is about to be written."""
        return self._folder / f"{secrets.token_hex(16)}.draft"

    async def keep(self, draft: Path, digest: str, name: str) -> None:  # noqa: ARG002
        """Give the file its name."""
        os.replace(draft, self._folder / digest)

    async def fetch(self, digest: str, name: str) -> Path | None:  # noqa: ARG002
        """Return the file; None if it is not there."""
        path = self._folder / digest
        return path if path.exists() else None

    def drop(self, digest: str) -> None:
        """Delete the file."""
        (self._folder / digest).unlink(missing_ok=True)

    async def publish(self, name: str, facts: Facts) -> None:
        """Do nothing: only one replica runs."""

    def forget(self, name: str) -> None:
        """Do nothing: only one replica runs."""

    async def lookup(self, name: str) -> Facts | None:  # noqa: ARG002
        """Return None: only one replica runs."""
        return None


class SharedBlobs(FolderBlobs):
    """A bucket or a folder of several services, with an own folder as a cache.

    obstore's blocking calls run in threads: its async ones abort processes at their exit.
    """

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        try:
            from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra
            from obstore.store import LocalStore, from_url  # noqa: PLC0415
        except ImportError:
            raise ConfigError(f"S3 needs the extra `s3`. {hint('s3')}") from None
        plain = os.environ.get("AWS_ALLOW_HTTP") in ("1", "true")
        self._store: Any
        if url.startswith("file://"):
            self._store = LocalStore(url.removeprefix("file://"), mkdir=True)
        else:
            self._store = from_url(url, client_options={"allow_http": plain})
        self._error: type[Exception] = BaseError
        self._background = Background(_LOG)

    async def keep(self, draft: Path, digest: str, name: str) -> None:
        """Upload it, and keep it here too; 503 if the bucket cannot be written."""
        try:
            await asyncio.to_thread(self._store.put, f"blobs/{name}", draft)
        except (self._error, OSError) as exc:
            raise _unavailable(exc) from None
        await super().keep(draft, digest, name)

    async def fetch(self, digest: str, name: str) -> Path | None:
        """Return the file; get it from the bucket if it is not here, and check it."""
        if (result := await super().fetch(digest, name)) is not None:
            return result
        draft = self.draft()
        try:
            actual = await asyncio.to_thread(self._download, name, draft)
        except FileNotFoundError:
            return None
        except (self._error, OSError) as exc:
            draft.unlink(missing_ok=True)
            raise _unavailable(exc) from None
        if actual != digest:
            draft.unlink()
            _LOG.error("the bucket has other bytes under %s", digest)
            return None
        await super().keep(draft, digest, name)
        return await super().fetch(digest, name)

    def _download(self, name: str, draft: Path) -> str:
        """Write an object's bytes to a file; return their SHA-256."""
        actual = hashlib.sha256()
        got = self._store.get(f"blobs/{name}")
        with draft.open("xb") as file:
            for piece in got.stream(min_chunk_size=_PIECE):
                actual.update(piece)
                file.write(piece)
        return actual.hexdigest()

    async def publish(self, name: str, facts: Facts) -> None:
        """Write the facts beside the bytes; 503 if the bucket cannot be written."""
        data = json.dumps(facts).encode()
        try:
            await asyncio.to_thread(self._store.put, f"objects/{name}.json", data)
        except self._error as exc:
            raise _unavailable(exc) from None

    def forget(self, name: str) -> None:
        """Delete it from the bucket when there is time for it."""
        for path in (f"objects/{name}.json", f"blobs/{name}"):
            self._background.spawn(self._delete(path))

    async def lookup(self, name: str) -> Facts | None:
        """Return what another replica wrote; None if there is nothing."""
        try:
            result = json.loads(await asyncio.to_thread(self._read, f"objects/{name}.json"))
        except (FileNotFoundError, ValueError):
            return None
        except self._error as exc:
            raise _unavailable(exc) from None
        return result if isinstance(result, dict) else None

    def _read(self, path: str) -> bytes:
        return bytes(self._store.get(path).bytes())

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(self._error, FileNotFoundError):
            await asyncio.to_thread(self._store.delete, path)


def blobs(settings: ServiceSettings) -> Blobs:
    """Return the place of bytes that the settings name."""
    folder = settings.folder / "blobs"
    return SharedBlobs(folder, settings.blobs) if settings.blobs else FolderBlobs(folder)


def _unavailable(exc: Exception) -> Problem:
    _LOG.warning("the bucket cannot be used: %s: %s", type(exc).__name__, str(exc)[:300])
    return Problem(503, "storage", "the service cannot reach its storage now", retry_after=5)

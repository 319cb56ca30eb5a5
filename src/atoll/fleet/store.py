"""The object store of a fleet: objects that are created once, read, listed and deleted.

obstore's blocking calls run in threads: its async ones abort processes at their exit. Nothing here
may be used in a process that was forked from another that has used it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from atoll.errors import ConfigError, FleetError
from atoll.extras import hint

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
THREADS = 32
"""Requests at one time; the next wait."""
SECONDS = 10
"""What one request may take; it is tried again within this time, and then given up."""
MARK = "fleet.json"


class Store:
    """Objects below one address: a folder, or `s3://bucket/prefix`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store, self._faults = _open(url)
        self._threads = ThreadPoolExecutor(THREADS, "atoll-store")

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object; return False, and change nothing, if there is one of this name."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        def put() -> bool:
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        return await self._run(put, f"write {key}")

    async def get(self, key: str) -> bytes | None:
        """Return an object's bytes; None if none has this name."""
        import obstore  # noqa: PLC0415

        def read() -> bytes | None:
            try:
                return bytes(obstore.get(self._store, key).bytes())
            except FileNotFoundError:
                return None

        return await self._run(read, f"read {key}")

    async def names(self, prefix: str, after: str | None = None) -> list[str]:
        """Return the names of the objects below a prefix, sorted; those past `after` alone."""
        names = await self.times(prefix)
        return sorted(name for name in names if after is None or name > after)

    async def times(self, prefix: str) -> dict[str, float]:
        """Return when each object below a prefix was written, by the clock of the store."""
        import obstore  # noqa: PLC0415

        def read() -> dict[str, float]:
            result = (entry for page in obstore.list(self._store, prefix) for entry in page)
            return {entry["path"]: entry["last_modified"].timestamp() for entry in result}

        return await self._run(read, f"list {prefix}")

    async def delete(self, *keys: str) -> None:
        """Delete objects; missing ones are ignored."""
        import obstore  # noqa: PLC0415

        def work() -> None:
            for key in keys:
                try:
                    obstore.delete(self._store, key)
                except FileNotFoundError:
                    continue

        await self._run(work, f"delete {len(keys)} objects")

    async def try_out(self) -> None:
        """Raise FleetError unless the store can be written and refuses a second create."""
        key = f"checks/{secrets.token_hex(8)}"
        first = await self.create(key, b"first")
        second = await self.create(key, b"second")
        kept = await self.get(key)
        with contextlib.suppress(FleetError):
            await self.delete(key)
        if not first or second or kept != b"first":
            raise FleetError(
                f"the store {self.url} accepts a second create of one name: it cannot keep a "
                "session from having two owners. Use a store that honours If-None-Match: *"
            )

    def close(self) -> None:
        """Wait for the requests that run."""
        self._threads.shutdown()

    async def _run(self, work: Callable[[], T], what: str) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work)
        except self._faults as exc:
            raise FleetError(f"the store {self.url} cannot {what}: {_reason(exc)}") from None


def _open(url: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return obstore's store and its errors; ConfigError if the address is invalid."""
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415
        from obstore.store import LocalStore, from_url  # noqa: PLC0415
    except ImportError:
        raise ConfigError(f"a fleet's store needs the extra `ray`. {hint('ray')}") from None
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return LocalStore(_folder(parts.path), mkdir=True), (BaseError, OSError)
    if parts.scheme == "memory":
        raise ConfigError("a store in memory is lost with its process: name a folder, or a bucket")
    plain = os.environ.get("AWS_ALLOW_HTTP") in ("1", "true")
    try:
        store: Any = from_url(
            url,
            client_options={"allow_http": plain, "timeout": f"{SECONDS}s", "connect_timeout": "3s"},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=SECONDS)},
        )
    except (BaseError, ValueError) as exc:
        raise ConfigError(f"{url!r} is not a store: {_reason(exc)}") from None
    return store, (BaseError, OSError)


def _folder(path: str) -> Path:
    """Return the folder, made if it is not there; ConfigError if it cannot be made."""
    if not os.path.isabs(path):
        raise ConfigError(f"the store's folder must be an absolute path, not {path!r}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"the store's folder {path} cannot be made: {exc.strerror}") from None
    return Path(path)


def _reason(exc: BaseException) -> str:
    """Return the first line of an error: obstore adds a picture of its fields below it."""
    return (str(exc).strip() or type(exc).__name__).splitlines()[0][:300]

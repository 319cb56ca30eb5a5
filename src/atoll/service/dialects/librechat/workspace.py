"""The files of one execution: put into the sandbox before it, and kept for the client after it."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import urlsafe_b64encode
from collections import Counter
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from atoll.service.dialects.librechat.storage import DEEPEST_NAME, ID, LONGEST_NAME, new_id
from atoll.service.http.problems import Problem, of_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.dialects.librechat.storage import StoredFile
    from atoll.service.dialects.librechat.wire import Exec

MOST_INPUT_BYTES = 512 << 20
MOST_OUTPUTS = 200
MOST_SKIPPED_NAMES = 20


class Runtimes:
    """Folders that last from call to call: a hint of the client names one of the user's."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known: set[str] = set()

    def lock(self, ident: str) -> asyncio.Lock:
        """Return the lock that lets one execution at a time into a runtime."""
        return self._locks.setdefault(ident, asyncio.Lock())

    def met_before(self, ident: str) -> bool:
        """Return whether the runtime was used before, and remember that it is now."""
        known = ident in self._known
        if len(self._known) > 100_000:
            self._known.clear()
        self._known.add(ident)
        return known


class Workspace:
    """What an execution finds in /mnt/data, and what it leaves there."""

    def __init__(self, service: Service, principal: Principal, given: Exec) -> None:
        self._files, self._principal = service.librechat.files, principal
        self._limit, self._memory = service.settings.max_upload_bytes, service.memory
        self.runtime = _runtime_id(principal, given.runtime_session_hint)
        self.storage = self._storage_for(given)
        self._inputs = self._find(given)
        self.status = ""
        self.files: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self._skipped: Counter[str] = Counter()
        self._skipped_names: list[str] = []
        self._failed = 0

    async def load(self, runtimes: Runtimes) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the files to put into the sandbox, one in memory at a time; 413 if too large."""
        if self.runtime:
            kept = self._files.list(self._principal, self.storage)
            known = runtimes.met_before(self.runtime) or bool(kept)
            self.status = "reused" if known else "new"
            self._inputs = {**{one.name: one for one in kept}, **self._inputs}
        if sum(one.size for one in self._inputs.values()) > MOST_INPUT_BYTES:
            text = f"the files have more than {MOST_INPUT_BYTES:,} bytes together"
            raise Problem(413, "session_input_too_large", text)
        for name, file in self._inputs.items():
            with self._memory.admit(self._principal, file.size, "a file for the code"):
                yield name, await self._read(file)

    async def collect(self, box: BaseSandbox, answer: dict[str, Any]) -> None:
        """Keep what the code wrote, and find out what it deleted."""
        if answer["state_lost"]:  # with the guest went its files
            return
        changed = answer["artifacts"]
        for one in changed:
            await self._keep(box, one["path"], one["size"])
        paths = {one["path"] for one in changed}
        for name, file in self._inputs.items():
            if name in paths and not file.read_only:
                continue
            if name not in paths and not await _exists(box, name):
                self.deleted.append(name)
                if file.storage == self.storage:
                    await self._files.delete(self._principal, file)
            else:
                self.files.append({**file_out(file, name), "inherited": True})

    def answer(self) -> dict[str, Any]:
        """Return the fields of a response that speak of files and of the runtime."""
        found: dict[str, Any] = {"session_id": self.storage, "files": self.files}
        if self.deleted:
            found["deleted_files"] = self.deleted
        if self._failed:
            delivered = sum("inherited" not in one for one in self.files)
            found["artifact_delivery"] = {
                "code": "artifact_delivery_failed",
                "status": "partial" if delivered else "failed",
                "attempted": delivered + self._failed,
                "delivered": delivered,
                "failed": self._failed,
            }
        if self._skipped:
            found["artifact_truncation"] = {
                "code": "artifact_truncated",
                "reasons": dict(self._skipped),
                "skipped": self._skipped_names,
                "skipped_count": sum(self._skipped.values()),
            }
        if self.runtime:
            found |= {"runtime_session_id": self.runtime, "runtime_status": self.status}
        return found

    async def _keep(self, box: BaseSandbox, path: str, size: int) -> None:
        before = self._inputs.get(path)
        if before is not None and before.read_only:
            return
        if reason := self._not_kept(path, size):
            self._skipped[reason] += 1
            self._skipped_names += (
                [path[:200]] if self._skipped.total() <= MOST_SKIPPED_NAMES else []
            )
            return
        try:
            with self._memory.admit(self._principal, size, "a file that the code wrote"):
                (found,) = await box.files.download([path])
                if found.content is None:
                    self._skipped["unreadable"] += 1
                    return
                made = await self._put(path, found.content)
        except Exception as exc:
            if of_error(exc).status < 500 and of_error(exc).code != "memory":
                raise
            self._failed += 1
            return
        told = file_out(made)
        if before is not None:
            origin = {"id": before.id, "storage_session_id": before.storage}
            told["modified_from"] = origin
            if before.storage == self.storage:
                await self._files.delete(self._principal, before)
        self.files.append(told)

    def _not_kept(self, path: str, size: int) -> str:
        if len(self.files) >= MOST_OUTPUTS:
            return "max_files"
        if size > self._limit:
            return "size"
        if path.count("/") >= DEEPEST_NAME:
            return "depth"
        return "path" if len(path) > LONGEST_NAME or not path.isprintable() or "\\" in path else ""

    async def _put(self, name: str, data: bytes) -> StoredFile:
        async def pieces() -> AsyncIterator[bytes]:
            yield data

        owner = f"user:{self._principal.user}"
        return await self._files.put(self._principal, self.storage, owner, name, pieces())

    async def _read(self, file: StoredFile) -> bytes:
        path = await self._files.path(self._principal, file)
        return await asyncio.to_thread(path.read_bytes)

    def _storage_for(self, given: Exec) -> str:
        """Return where outputs go: the runtime's folder, the session that is named, a new one."""
        if self.runtime:
            digest = hashlib.sha256(f"storage {self.runtime}".encode()).digest()
            return urlsafe_b64encode(digest).decode()[:21]
        named = given.session_id or ""
        own = f"user:{self._principal.user}"
        if ID.match(named) and self._files.owner_of(self._principal, named) == own:
            return named
        return new_id()

    def _find(self, given: Exec) -> dict[str, StoredFile]:
        """Return the files by name; of several with one name the last; 403 for a stranger's."""
        found: dict[str, StoredFile] = {}
        for one in given.files:
            file = self._files.get(self._principal, one.storage, one.id)
            if not one.scope.may_read(self._principal, file):
                text = "the storage session belongs to another user or agent"
                raise Problem(403, "forbidden", text)
            found[one.name] = file
        return found


def file_out(file: StoredFile, name: str = "") -> dict[str, Any]:
    """Return a file as a response tells of it; `name` is the one it had for the code."""
    name = name or file.name
    kind, _, rest = file.owner.partition(":")
    told: dict[str, Any] = {
        "id": file.id,
        "name": name,
        "path": f"/mnt/data/{name}",
        "storage_session_id": file.storage,
        "session_id": file.storage,
        "kind": kind,
        "resource_id": file.id if kind == "user" else rest.partition(":v:")[0],
    }
    if kind == "skill":
        told["version"] = int(rest.partition(":v:")[2])
    return told


async def _exists(box: BaseSandbox, name: str) -> bool:
    try:
        await box.files.stat(name)
    except OSError:
        return False
    return True


def _runtime_id(principal: Principal, hint: str | None) -> str:
    if not hint:
        return ""
    text = f"{principal.tenant}\0{principal.user}\0{hint}"
    return "rt_" + hashlib.sha256(text.encode()).hexdigest()[:40]

"""The files of one execution: put into the sandbox before it, and kept for the client after it."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import urlsafe_b64encode
from collections import Counter
from typing import TYPE_CHECKING, Literal
from weakref import WeakValueDictionary

from msgspec import UNSET, Struct, UnsetType

from atoll.service.dialects.librechat.storage import DEEPEST_NAME, ID, LONGEST_NAME, new_id
from atoll.service.http.problems import Problem, of_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.work import RunResult
    from atoll.service.dialects.librechat.storage import StoredFile
    from atoll.service.dialects.librechat.wire import Exec

MAX_INPUT_BYTES = 512 << 20
MAX_OUTPUTS = 200
MAX_SKIPPED_NAMES = 20


class FileOrigin(Struct):
    """The file that code has changed."""

    id: str
    storage_session_id: str


class FileOut(Struct, kw_only=True):
    """A file as a response shows it."""

    id: str
    name: str
    path: str
    storage_session_id: str
    session_id: str
    kind: str
    resource_id: str
    version: int | UnsetType = UNSET
    inherited: bool | UnsetType = UNSET
    """Whether it is an input that was not changed."""
    modified_from: FileOrigin | UnsetType = UNSET

    @classmethod
    def of(cls, file: StoredFile, name: str = "") -> FileOut:
        """Return a kept file; `name` is its name for the code."""
        name = name or file.name
        kind, _, rest = file.owner.partition(":")
        resource, _, version = rest.partition(":v:")
        return cls(
            id=file.id,
            name=name,
            path=f"/mnt/data/{name}",
            storage_session_id=file.storage,
            session_id=file.storage,
            kind=kind,
            resource_id=file.id if kind == "user" else resource,
            version=int(version) if kind == "skill" else UNSET,
        )


class Delivery(Struct, kw_only=True):
    """How many of the files that the code wrote could be kept."""

    code: str = "artifact_delivery_failed"
    status: Literal["partial", "failed"]
    attempted: int
    delivered: int
    failed: int


class Truncation(Struct, kw_only=True):
    """Which of the files that the code wrote were left out, and why."""

    code: str = "artifact_truncated"
    reasons: dict[str, int]
    skipped: list[str]
    skipped_count: int


class ExecAnswer(Struct, kw_only=True):
    """What code printed, the files that it left, and the runtime that it ran in."""

    session_id: str
    files: list[FileOut]
    deleted_files: list[str] | UnsetType = UNSET
    artifact_delivery: Delivery | UnsetType = UNSET
    artifact_truncation: Truncation | UnsetType = UNSET
    runtime_session_id: str | UnsetType = UNSET
    runtime_status: str | UnsetType = UNSET
    stdout: str
    stderr: str


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
        self.files: list[FileOut] = []
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
            self._inputs = {**{file.name: file for file in kept}, **self._inputs}
        if sum(file.size for file in self._inputs.values()) > MAX_INPUT_BYTES:
            text = f"the files have more than {MAX_INPUT_BYTES:,} bytes together"
            raise Problem(413, "session_input_too_large", text)
        for name, file in self._inputs.items():
            with self._memory.admit(self._principal, file.size, "a file for the code"):
                yield name, await self._read(file)

    async def collect(self, box: BaseSandbox, result: RunResult) -> None:
        """Keep what the code wrote, and find out what it deleted."""
        if result.state_lost:  # with the guest went its files
            return
        for written in result.artifacts:
            await self._keep(box, written.path, written.size)
        paths = {written.path for written in result.artifacts}
        for name, file in self._inputs.items():
            if name in paths and not file.read_only:
                continue
            if name not in paths and not await _exists(box, name):
                self.deleted.append(name)
                if file.storage == self.storage:
                    await self._files.delete(self._principal, file)
            else:
                unchanged = FileOut.of(file, name)
                unchanged.inherited = True
                self.files.append(unchanged)

    def answer(self, stdout: str, stderr: str) -> ExecAnswer:
        """Return the response with the code's output."""
        answer = ExecAnswer(session_id=self.storage, files=self.files, stdout=stdout, stderr=stderr)
        if self.deleted:
            answer.deleted_files = self.deleted
        if self._failed:
            delivered = sum(file.inherited is UNSET for file in self.files)
            answer.artifact_delivery = Delivery(
                status="partial" if delivered else "failed",
                attempted=delivered + self._failed,
                delivered=delivered,
                failed=self._failed,
            )
        if self._skipped:
            answer.artifact_truncation = Truncation(
                reasons=dict(self._skipped),
                skipped=self._skipped_names,
                skipped_count=self._skipped.total(),
            )
        if self.runtime:
            answer.runtime_session_id, answer.runtime_status = self.runtime, self.status
        return answer

    async def _keep(self, box: BaseSandbox, path: str, size: int) -> None:
        before = self._inputs.get(path)
        if before is not None and before.read_only:
            return
        if reason := self._not_kept(path, size):
            self._skipped[reason] += 1
            self._skipped_names += (
                [path[:200]] if self._skipped.total() <= MAX_SKIPPED_NAMES else []
            )
            return
        try:
            with self._memory.admit(self._principal, size, "a file that the code wrote"):
                (loaded,) = await box.files.download([path])
                if loaded.content is None:
                    self._skipped["unreadable"] += 1
                    return
                made = await self._put(path, loaded.content)
        except Exception as exc:
            if of_error(exc).status < 500 and of_error(exc).code != "memory":
                raise
            self._failed += 1
            return
        kept = FileOut.of(made)
        if before is not None:
            kept.modified_from = FileOrigin(before.id, before.storage)
            if before.storage == self.storage:
                await self._files.delete(self._principal, before)
        self.files.append(kept)

    def _not_kept(self, path: str, size: int) -> str:
        if len(self.files) >= MAX_OUTPUTS:
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
        inputs: dict[str, StoredFile] = {}
        for asked in given.files:
            file = self._files.get(self._principal, asked.storage, asked.id)
            if not asked.scope.may_read(self._principal, file):
                text = "the storage session belongs to another user or agent"
                raise Problem(403, "forbidden", text)
            inputs[asked.name] = file
        return inputs


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

"""What a jail is to be, as plain data: made by the host, sent to the warden, read by the steps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

GUEST_UID = 1000
GUEST_HOME = "/home/guest"
WORK_FOLDER = "/app"
WORK_ALIAS = "/mnt/data"
GUEST_CODE = "/opt/atoll"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host path that the guest sees at `target`."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the kernel is told; None is no limit."""

    memory: int | None
    processes: int | None
    disk: int | None
    file_size: int | None
    open_files: int
    context: int = 0
    """Bytes of the shared context: address space that is not the guest's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """One jail. Descriptors travel beside it, in the order of `FD_NAMES`."""

    jailed: bool
    """Namespaces and a root of its own; else Landlock, seccomp and rlimits alone."""
    argv: tuple[str, ...]
    env: dict[str, str]
    binds: tuple[Bind, ...]
    workspace: str | None
    limits: Limits

    def to_json(self) -> bytes:
        """The spec as the warden gets it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> JailSpec:
        """The spec that `to_json` wrote."""
        fields = json.loads(data)
        fields["argv"] = tuple(fields["argv"])
        fields["binds"] = tuple(Bind(**bind) for bind in fields["binds"])
        fields["limits"] = Limits(**fields["limits"])
        return cls(**fields)


FD_NAMES = ("lease", "requests", "answers", "stderr", "stdout", "rights")
"""The lease socket; then what the guest gets as descriptors 0, 1, 2, 3 and 4."""

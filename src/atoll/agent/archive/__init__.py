"""Archives and PDFs, read in memory under limits: nothing is ever written to a disk.

SECURITY: the file is hostile. Another process parses it, with limits of time and memory and, where
the kernel supports them, Landlock and seccomp. It returns only sizes, names and bytes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.agent.archive.archive import Archive as Archive
    from atoll.agent.archive.archive import open_archive as open_archive
    from atoll.agent.archive.types import ArchiveLimits as ArchiveLimits
    from atoll.agent.archive.types import Hit as Hit
    from atoll.agent.archive.types import Hits as Hits
    from atoll.agent.archive.types import Member as Member
    from atoll.agent.archive.types import Skipped as Skipped

# Loaded on first use: the reading process, started for each archive, needs none of the host's part.
_HOMES = {
    "Archive": "archive",
    "ArchiveLimits": "types",
    "Hit": "types",
    "Hits": "types",
    "Member": "types",
    "Skipped": "types",
    "open_archive": "archive",
}
__all__ = [*_HOMES]  # noqa: PLE0604 - the keys are strings


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'atoll.agent.archive' has no attribute {name!r}")
    return getattr(import_module(f"atoll.agent.archive.{_HOMES[name]}"), name)

"""Commits the session of a guest: its folders, by descriptor, as a layer on top of its image."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from atoll.images.changes import KEPT_FOLDERS, Changes
from atoll.images.snapshot import commit_changes
from atoll.jail.supervisor.spec import GUEST_CODE, SHOWN_FOLDERS, WORK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.config import SandboxConfig
    from atoll.images import HeldImage
    from atoll.launch.handshake import RunningGuest
    from atoll.sandbox.verbs import Commit
    from atoll.types import CommittedImage


def commit(
    held: HeldImage, guest: RunningGuest, config: SandboxConfig, fds: list[int], request: Commit
) -> CommittedImage:
    """Commit the session of a guest; close the descriptors of its folders. This blocks."""
    try:
        shown = dict(zip(SHOWN_FOLDERS, fds, strict=False))
        kept = {path: shown[path] for path in KEPT_FOLDERS if path in shown}
        if config.workspace is not None:
            del kept[WORK_FOLDER]  # a folder of the host is not the session's
        changes = Changes(
            upper=next(iter(fds[len(SHOWN_FOLDERS) + len(config.policy.folders) :]), None),
            folders=kept,
            mounted=(
                GUEST_CODE,
                *config.policy.folders,
                *(mount.target for mount in config.policy.mounts),
            ),
        )
        disk = config.policy.disk_bytes
        return commit_changes(held.image, changes, request, disk, _frozen(guest))
    finally:
        held.close()
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def _frozen(guest: RunningGuest) -> Iterator[None]:
    """Keep the guest's processes from running, if this host can; else a file may be in between."""
    freezer = guest.lease.usage.freezer()
    is_frozen = freezer.freeze()
    try:
        yield
    finally:
        if is_frozen:
            freezer.thaw()

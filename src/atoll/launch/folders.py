"""The descriptors of a guest's folders, under the names that they have for the guest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atoll.errors import SandboxError
from atoll.files.direct import close_all
from atoll.jail.supervisor.spec import SHOWN_FOLDERS, WORK_ALIAS, WORK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def by_name(
    fds: list[int], *, hidden: Iterable[str], workspace: Path | None, more: tuple[str, ...] = ()
) -> dict[str, int]:
    """Return a jail's SHOWN_FOLDERS by name, the caller's to close, without the hidden ones.

    `more` are the further folders of its policy. A working folder of the host is opened anew: as
    its owner sees it, not as the guest does.
    """
    names = (*SHOWN_FOLDERS, *more)
    folders = dict(zip(names, fds, strict=False))
    for fd in fds[len(names) :]:  # the upper layer of a writable root: no folder of a guest
        os.close(fd)
    try:
        for name in set(hidden) & set(folders):
            os.close(folders.pop(name))
        if workspace is not None:
            folders[WORK_FOLDER] = _exchange(folders[WORK_FOLDER], workspace)
        folders[WORK_ALIAS] = os.dup(folders[WORK_FOLDER])
    except BaseException as exc:
        close_all(folders)
        if isinstance(exc, OSError):
            raise SandboxError(f"the guest's folder cannot be opened: {exc}") from exc
        raise
    return folders


def _exchange(fd: int, folder: Path) -> int:
    """Return a descriptor of `folder` in place of another; SandboxError if it is gone."""
    try:
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise SandboxError(f"the working folder {folder} cannot be opened: {exc.strerror}") from exc
    os.close(fd)
    return opened

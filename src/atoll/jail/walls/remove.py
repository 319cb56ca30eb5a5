"""Removes a folder that a guest has left, whatever it did to it: modes, links, any depth."""

from __future__ import annotations

import os

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: str) -> None:
    """Remove `folder`. Its subfolders are moved up one by one, so no path grows with the depth."""
    top = os.open(folder, _OPEN)
    try:
        queue = _empty(top, top)
        while queue:
            name = queue.pop()
            os.chmod(name, 0o700, dir_fd=top)
            inner = os.open(name, _OPEN, dir_fd=top)
            queue += _empty(inner, top)
            os.close(inner)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _empty(folder: int, top: int) -> list[str]:
    """Unlink the files in `folder` and move its subfolders into `top`; their names there."""
    moved = []
    with os.scandir(folder) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        new_name = f".{os.urandom(8).hex()}"
        os.chmod(name, 0o700, dir_fd=folder)  # a folder must be writable to be moved
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=top)
        moved.append(new_name)
    return moved

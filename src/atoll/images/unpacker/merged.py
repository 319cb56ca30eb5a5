"""The merged view of a layer and those below it, as an overlay would show it."""

from __future__ import annotations

import os
import stat

MOST_PATH = 3800
"""Bytes of a path: the host must be able to name it below its store."""


class HostileLayerError(Exception):
    """A layer is invalid or hostile."""


class Folder:
    """A folder of the merged root."""

    def __init__(self, path: str, lower: list[str], *, mine: bool, opaque: bool = False) -> None:
        self.path, self.lower = path, lower
        """Its places in the layers below, highest first."""
        self.mine = mine
        """Whether this layer has it."""
        self.opaque = opaque
        """Whether this layer hides all that the layers below have in it."""
        self.gone: set[str] = set()
        """Names in the layers below that this layer deletes or replaces."""

    def below(self, name: str) -> list[str] | str | bool | None:
        """Return what can still be seen of the layers below under a name: see `look_below`."""
        return None if self.opaque or name in self.gone else look_below(self.lower, name)


def look_below(trees: list[str], name: str) -> list[str] | str | bool | None:
    """Return what the layers below have under a name.

    The places of a folder, the target of a link, False for another file, None for nothing.
    """
    places: list[str] = []
    for tree in trees:
        path = f"{tree}/{name}"
        kind = kind_of(path)
        if kind is None:
            continue
        if stat.S_ISDIR(kind):
            places.append(path)
        elif places or stat.S_ISCHR(kind):
            break
        else:
            return os.readlink(path) if stat.S_ISLNK(kind) else False
    return places or None


def names_below(trees: list[str]) -> set[str]:
    """Return the names that the layers below have in a folder, and do not delete."""
    names: set[str] = set()
    for tree in trees:
        names.update(os.listdir(tree))
    return {name for name in names if look_below(trees, name) is not None}


def kind_of(path: str) -> int | None:
    """Return the mode of a file, with its kind; None if it is missing."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


def join(folder: str, name: str) -> str:
    """Return the path of an entry; HostileLayerError if it is too long."""
    path = f"{folder}/{name}" if folder else name
    if len(path) > MOST_PATH or len(os.fsencode(path)) > MOST_PATH:
        raise HostileLayerError(f"a path in it has more than {MOST_PATH:,} bytes")
    return path


def split(path: str) -> list[str]:
    """Return the components of a path."""
    if "\0" in path:
        raise HostileLayerError("a path in it contains a zero byte")
    return [part for part in path.split("/") if part not in ("", ".")]

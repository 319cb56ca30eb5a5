"""Users of an image by name or number, as USER in its configuration names them.

SECURITY: the image's files are read by descriptors below its layers, a little of each, and no link
leads out.
"""

from __future__ import annotations

import functools
import os
import stat
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.files.folder import open_beneath
from atoll.jail.supervisor.spec import GuestUser
from atoll.jail.walls.image_root import MOST_USERS

if TYPE_CHECKING:
    from atoll.images.image import Image

IMAGE = "image"
"""What `user` and `workdir` are to be, so that the image's own are used."""
_ROOTS = ("", "root", "0")
_MOST_ID = (1 << 32) - 2
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def find_user(image: Image, asked: str) -> GuestUser:
    """Return the user that USER, USER:GROUP, UID or UID:GID names; ConfigError if it has none."""
    text = image.config.user if asked == IMAGE else asked
    name, _, group = text.partition(":")
    if name in _ROOTS and not group:
        return GuestUser(0, 0)
    layers = tuple(map(str, image.layers))
    try:
        uid, gid = _id_of(layers, "passwd", name)
        gid = gid if not group else _id_of(layers, "group", group)[0]
    except LookupError as exc:
        text = f"the image {image.reference} has no user {text!r:.80}: {exc}"
        raise ConfigError(f"{text}. Name one of its /etc/passwd, or a number") from None
    return GuestUser(uid, gid)


@functools.lru_cache(maxsize=256)
def _id_of(layers: tuple[str, ...], file: str, name: str) -> tuple[int, int]:
    """Return the id of a user or group, and the group of the user."""
    found: dict[bool, tuple[int, int]] = {}
    """By whether it was found by its name."""
    for line in _read(layers, f"etc/{file}").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) > 3 and name in (fields[0], fields[2]) and fields[2].isdecimal():
            group = fields[3] if file == "passwd" and fields[3].isdecimal() else fields[2]
            found.setdefault(fields[0] == name, (int(fields[2]), int(group)))
    if name.isascii() and name.isdecimal():
        number = int(name)
        return _checked(found.get(False) or (number, 0 if file == "passwd" else number))
    if True not in found:
        raise LookupError(f"no {name[:40]!r} in its /etc/{file}")
    return _checked(found[True])


def _checked(ids: tuple[int, int]) -> tuple[int, int]:
    if max(ids) > _MOST_ID:
        raise LookupError(f"{max(ids)} is too large for an id")
    return ids


def _read(layers: tuple[str, ...], path: str) -> bytes:
    """Return the beginning of a regular file of an image; nothing if it has none."""
    for layer in reversed(layers):
        folder = os.open(layer, os.O_PATH | os.O_CLOEXEC)
        try:
            fd = open_beneath(folder, path, _READ)
        except OSError:  # not in this layer
            continue
        finally:
            os.close(folder)
        with open(fd, "rb") as file:
            return file.read(MOST_USERS) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    return b""

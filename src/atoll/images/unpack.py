"""Unpacks a layer in a jail, then checks what the jail has left."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from atoll import extras
from atoll.config import images_limit
from atoll.errors import ImageError, PackageError
from atoll.images import unpacker
from atoll.images.image import OWNERS, TREE
from atoll.images.unpacker.stream import NO_ZSTD
from atoll.launch import interpreter
from atoll.packages import jailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.guest.shared.messages import Json

MOST_BYTES = 64 << 30
MOST_ENTRIES = 2_000_000
UNPACK_SECONDS = 3600
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BOOT = (
    "import os, runpy, sys; place = sys.argv.pop(1); sys.path.insert(0, os.path.dirname(place)); "
    "runpy.run_module(os.path.basename(place), run_name='__main__', alter_sys=True)"
)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack_layer(blob: Path, lower: Sequence[Path], folder: Path, diff_id: str, image: str) -> int:
    """Fill `folder` with a layer's tree and side file; return its size on the disk.

    `lower` are the folders of the layers below it, lowest first. ImageError if the layer is
    hostile, too large, or not the one of `diff_id`.
    """
    below = {f"lower{number}": str(path) for number, path in enumerate(reversed(lower))}
    report = _run(blob, below, folder, image)
    if report.get("diff_id") != diff_id:
        raise ImageError(image, "a layer is not the one that its configuration names")
    check(folder, image)
    return int(report["size"])


def _run(blob: Path, below: dict[str, str], folder: Path, image: str) -> Json:
    most = min(MOST_BYTES, images_limit())
    arguments = ("-c", _BOOT, "unpacker", "blob", str(most), str(MOST_ENTRIES), *below)
    program = str(Path(unpacker.__file__).parent)
    try:
        said = jailed.run(
            interpreter.resolve(None),
            arguments,
            seen={"unpacker": program},
            owned={"blob": str(blob), **below},
            folder=folder,
            seconds=UNPACK_SECONDS,
        )
    except PackageError as exc:
        raise ImageError(image, exc.reason, exc.hint) from None
    try:
        report = json.loads(said.stdout)
    except ValueError:
        words = said.stderr.strip()[-300:] or "it was ended"
        raise ImageError(image, f"a layer could not be unpacked: {words}") from None
    if "error" in report:
        raise _failure(report, image)
    return dict(report)


def _failure(report: Json, image: str) -> ImageError:
    if report.get("errno") in _FULL:
        return ImageError(image, "the disk is full", "Type: atoll image prune")
    if report["error"] == NO_ZSTD:
        return ImageError(image, NO_ZSTD, extras.hint("images"))
    return ImageError(image, f"a layer is refused: {report['error']}")


def check(folder: Path, image: str) -> None:
    """Check what a jail has written; ImageError if it is not what the unpacker writes.

    SECURITY: no link is followed. A file is not another user's, has no set-id bit, and is no
    device except the one that an overlay takes for a deleted file. The whole of a layer is as deep
    as its paths are long, so folders are visited by a list of descriptors' names, not recursively.
    """
    if sorted(os.listdir(folder)) != [OWNERS, TREE]:
        raise ImageError(image, "a layer left other files than its own")
    if not stat.S_ISREG(os.lstat(folder / OWNERS).st_mode):
        raise ImageError(image, "a layer left other files than its own")
    owner = os.stat(folder).st_uid
    waiting = [str(folder / TREE)]
    while waiting:
        place = waiting.pop()
        here = os.open(place, _FOLDER)
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    facts = entry.stat(follow_symlinks=False)
                    _check_entry(facts, owner, f"{place}/{entry.name}", image)
                    if stat.S_ISDIR(facts.st_mode):
                        waiting.append(f"{place}/{entry.name}")
        finally:
            os.close(here)


def _check_entry(facts: os.stat_result, owner: int, path: str, image: str) -> None:
    kind = stat.S_IFMT(facts.st_mode)
    right = facts.st_uid == owner and not facts.st_mode & 0o6000
    if kind == stat.S_IFCHR:
        right &= facts.st_rdev == 0
    else:
        right &= kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO)
    if not right:
        raise ImageError(image, f"a layer left {path!r}, which is not an ordinary file")

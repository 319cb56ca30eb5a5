"""Images in OCI layouts on this machine: folders with index.json and blobs."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, Protocol

from atoll.errors import ImageError
from atoll.images.manifest import (
    INDEXES,
    MOST_MANIFEST,
    choose,
    digest_of,
    media_type_of,
    parse_manifest,
    parse_object,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader
    from pathlib import Path

    from atoll.images.manifest import (
        Descriptor,
        Manifest,
    )

CHUNK = 1 << 20
MOST_INDEXES = 4
"""How deep an index may name another."""


class Source(Protocol):
    """Where the parts of an image come from."""

    def manifest(self, architecture: str) -> Manifest:
        """Return the manifest of the image for an architecture."""

    def fetch(self, blob: Descriptor, target: Path, received: Callable[[int], None]) -> None:
        """Make `target` of a blob, whole and checked; call `received` with numbers of bytes."""


class Layout:
    """An OCI layout."""

    def __init__(self, folder: Path, image: str, tag: str = "") -> None:
        self._folder, self._image, self._tag = folder, image, tag

    def manifest(self, architecture: str) -> Manifest:
        """Return the manifest of the image for an architecture."""
        data, tag = self._read(self._folder / "index.json", MOST_MANIFEST), self._tag
        for _ in range(MOST_INDEXES):
            value = parse_object(data, self._image, "index", MOST_MANIFEST)
            if media_type_of(value) not in INDEXES:
                return parse_manifest(data, self._image)
            blob = choose(value, self._image, architecture, tag)
            tag = ""
            data = self._read(self._path(blob), MOST_MANIFEST)
            if digest_of(data) != blob.digest:
                raise ImageError(self._image, f"{blob.digest} is damaged: its digest is another")
        raise ImageError(self._image, "its index names other indexes too deeply")

    def fetch(self, blob: Descriptor, target: Path, received: Callable[[int], None]) -> None:
        """Copy a blob to `target`, checked."""
        with open_file(self._path(blob), self._image) as source:
            draft = target.with_name(f"{target.name}.part")
            draft.unlink(missing_ok=True)
            copy_checked(source, blob, draft, self._image, received)
            draft.rename(target)

    def _path(self, blob: Descriptor) -> Path:
        return self._folder / "blobs" / "sha256" / blob.hex

    def _read(self, path: Path, most: int) -> bytes:
        with open_file(path, self._image) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ImageError(self._image, f"{path.name} has more than {most:,} bytes")
        return data


def open_file(path: Path, image: str) -> BufferedReader:
    """Open a regular file of an image; ImageError for a pipe or a device, which may never end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        hint = "Is it an OCI layout?" if path.name == "index.json" else ""
        raise ImageError(image, f"{path} does not exist", hint) from None
    except OSError as exc:
        raise ImageError(image, f"{path}: {exc.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ImageError(image, f"{path} is not a file")
    return open(fd, "rb")


def copy_checked(
    source: BufferedReader,
    blob: Descriptor,
    target: Path,
    image: str,
    received: Callable[[int], None],
) -> None:
    """Copy what a file has left to a new one; ImageError if digest or size are others."""
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as made:
        while size <= blob.size and (piece := source.read(CHUNK)):
            made.write(piece)
            digest.update(piece)
            size += len(piece)
            received(len(piece))
    check_blob(blob, size, digest.hexdigest(), image)


def check_blob(blob: Descriptor, size: int, hexdigest: str, image: str) -> None:
    """Raise ImageError if a blob has another size or digest than its manifest says."""
    if size != blob.size:
        what = "larger" if size > blob.size else "smaller"
        raise ImageError(
            image, f"{blob.digest} is {what} than the {blob.size:,} bytes it should be"
        )
    if hexdigest != blob.hex:
        raise ImageError(image, f"{blob.digest} is damaged: its digest is sha256:{hexdigest}")

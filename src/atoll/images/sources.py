"""Opens the source of an image: a registry, a layout, or an archive."""

from __future__ import annotations

import contextlib
import tarfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ImageError
from atoll.images import archive
from atoll.images.layout import Layout
from atoll.images.reference import RegistryReference
from atoll.images.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.images.layout import Source
    from atoll.images.reference import Reference


@contextlib.contextmanager
def open_source(asked: Reference, image: str, scratch: Path) -> Iterator[Source]:
    """Yield the source of an image; `scratch` is for what an archive is unpacked to."""
    if isinstance(asked, RegistryReference):
        yield Registry(asked, image)
        return
    if asked.kind == "oci":
        yield Layout(Path(asked.path), image, asked.tag)
        return
    folder = scratch / "layout"
    folder.mkdir()
    try:
        if asked.kind == "oci-archive":
            archive.unpack_oci(asked.path, folder, image)
        else:
            archive.unpack_docker(asked.path, folder, image, asked.tag)
    except (tarfile.TarError, EOFError, zlib.error, RecursionError, MemoryError) as exc:
        raise ImageError(image, f"{asked.path} is damaged: {exc}") from None
    yield Layout(folder, image, asked.tag if asked.kind == "oci-archive" else "")

"""Commits a session: what it has changed becomes a layer on top of its image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.config import images_limit
from atoll.errors import ConfigError, ImageError
from atoll.images import store
from atoll.images.changes import Packed, pack_changes
from atoll.images.commit import add_layer
from atoll.images.export import KIND, layout_of, write_layout
from atoll.images.image import ConfigChanges
from atoll.images.obtain import check_name
from atoll.images.push import push_image
from atoll.types import CommittedImage

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from atoll.images.changes import Changes
    from atoll.images.commit import LayerWriter
    from atoll.images.image import Image
    from atoll.sandbox.verbs import Commit

CREATED_BY = "atoll commit"


def check_request(request: Commit) -> None:
    """Raise ConfigError if an image cannot be committed to this target."""
    if not request.target.startswith(KIND):
        check_name(request.target)
    elif request.push:
        raise ConfigError("push sends an image to a registry, and the target is a folder")
    else:
        layout_of(request.target)


def commit_changes(
    base: Image,
    changes: Changes,
    request: Commit,
    disk: int | None,
    frozen: AbstractContextManager[object],
) -> CommittedImage:
    """Store the base and the changes as a new image; copy or push it where the request says.

    The session is `frozen` while its files are read. Its changes may take `disk` bytes, and no
    other image is removed to make room for them. This blocks.
    """
    check_request(request)
    is_layout = request.target.startswith(KIND)
    room = images_limit() - store.total_size()
    if room <= 0:
        hint = "Type: atoll image prune, or set ATOLL_IMAGES_MB to more."
        raise ImageError(request.target, f"the store is full ({images_limit():,} bytes)", hint)
    packed = Packed()

    def fill(writer: LayerWriter) -> None:
        nonlocal packed
        with frozen:
            packed = pack_changes(changes, base, writer, min(room, disk or room))

    held = add_layer(
        base,
        fill,
        ConfigChanges(created_by=CREATED_BY),
        "" if is_layout else request.target,
        compression=request.compression,
        evict=False,
    )
    try:
        if is_layout:
            write_layout(held.image, request.target)
        elif request.push:
            push_image(held.image, request.target)
        return CommittedImage(
            image=request.target,
            digest=held.image.digest,
            files=packed.files,
            layer_bytes=packed.size,
            left_out=dict(packed.left_out),
        )
    finally:
        held.close()

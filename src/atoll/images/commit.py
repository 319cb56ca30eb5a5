"""New images: a layer on top of a stored one, packed and stored with its own configuration."""

from __future__ import annotations

import contextlib
import hashlib
import time
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING

from atoll.config import images_limit
from atoll.errors import ImageError
from atoll.images import store
from atoll.images.manifest import (
    CONFIG,
    LAYER,
    MANIFEST,
    MOST_LAYERS,
    Descriptor,
    chain_ids,
    encode,
    parse_config,
    parse_manifest,
)
from atoll.images.obtain import check_name, ensure_layer
from atoll.images.store import Part, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.guest.shared.messages import Json
    from atoll.images.image import ConfigChanges, HeldImage, Image

CHUNK = 1 << 20
LEVEL = 1
"""Of gzip: a higher one takes three times as long and saves a tenth."""


def add_layer(
    base: Image, layer: Path | IO[bytes], changes: ConfigChanges, name: str = ""
) -> HeldImage:
    """Store a new image: the base, a tar of changes on top, and a changed configuration.

    The tar may have whiteouts (.wh.NAME). `name` is the reference by which the image is found
    later; without one, it is found by its digest. The caller holds the base. This blocks.
    """
    asked = check_name(name) if name else None
    image = name or base.reference
    with store.disk_errors(image), store.keeping():
        record = store.read(base.digest)
        if record is None:
            raise ImageError(base.reference, "it is no longer in the store")
        if len(record.layers) >= MOST_LAYERS:
            raise ImageError(image, f"it would have more than {MOST_LAYERS} layers")
        blob, diff_id = _pack(layer)
        made = _store(record, blob, diff_id, changes, image)
        held = store.hold(made.digest, name or made.digest)
        if held is None:
            raise ImageError(image, "it was removed while it was made", "Try again.")
        if asked is not None:
            store.set_name(str(asked), made.digest)
    store.evict(images_limit(), spare=made.digest)
    return held


def _store(
    base: Record, blob: Descriptor, diff_id: str, changes: ConfigChanges, image: str
) -> Record:
    whole, _, diff_ids = parse_config(store.read_blob(base.config, image), image)
    manifest = parse_manifest(store.read_blob(base.digest, image), image)
    diff_ids = (*diff_ids, diff_id)
    chain = chain_ids(diff_ids)[-1]
    lower = [store.layer_path(part.folder) for part in base.layers]
    size = ensure_layer(store.blob_path(blob.digest), lower, chain, diff_id, image)
    data = encode(_changed(whole, diff_ids, changes))
    config = Descriptor(digest=store.write_blob(data), size=len(data), media_type=CONFIG)
    facts = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.facts(),
        "layers": [layer.facts() for layer in (*manifest.layers, blob)],
    }
    part = Part(blob=blob.digest, folder=chain, packed=blob.size, unpacked=size)
    record = Record(
        digest=store.write_blob(encode(facts)),
        config=config.digest,
        layers=(*base.layers, part),
        architecture=base.architecture,
        created=time.time(),
    )
    store.write(record)
    return record


def _changed(whole: Json, diff_ids: tuple[str, ...], changes: ConfigChanges) -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    history = whole.get("history")
    steps = history if isinstance(history, list) else []
    return {
        **whole,
        "created": now,
        "config": changes.apply(whole.get("config") or {}),
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [*steps, {"created": now, "created_by": changes.created_by}],
    }


def _pack(layer: Path | IO[bytes]) -> tuple[Descriptor, str]:
    """Store a tar as a gzip blob; return that, and the digest of the tar."""
    plain, packed, size = hashlib.sha256(), hashlib.sha256(), 0
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
    with _opened(layer) as source, store.scratch() as scratch:
        with (scratch / "blob").open("xb") as made:
            while True:
                piece = source.read(CHUNK)
                plain.update(piece)
                data = packer.compress(piece) if piece else packer.flush()
                packed.update(data)
                size += made.write(data)
                if not piece:
                    break
        digest = f"sha256:{packed.hexdigest()}"
        (scratch / "blob").replace(store.blob_path(digest))
    blob = Descriptor(digest=digest, size=size, media_type=f"{LAYER}+gzip")
    return blob, f"sha256:{plain.hexdigest()}"


@contextlib.contextmanager
def _opened(layer: Path | IO[bytes]) -> Iterator[IO[bytes]]:
    if isinstance(layer, Path):
        with layer.open("rb") as file:
            yield file
    else:
        yield layer

"""New images: a layer on top of a stored one, packed and stored with its own configuration.

layer (a tar) ──packed──▶ blob ──unpacked in a jail──▶ store ──copied──▶ layout, registry
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

from atoll import extras
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
LEVEL, ZSTD_LEVEL = 1, 3
"""Of gzip, a higher one takes three times as long and saves a tenth."""


class Packer(Protocol):
    """What compresses a stream."""

    def compress(self, data: bytes, /) -> bytes:
        """Return the packed bytes so far."""

    def flush(self) -> bytes:
        """Return the rest."""


Layer = Path | IO[bytes] | Callable[["LayerWriter"], None]
"""A tar: its path, its bytes, or a function that writes it."""


def add_layer(
    base: Image,
    layer: Layer,
    changes: ConfigChanges,
    name: str = "",
    *,
    compression: str = "gzip",
    evict: bool = True,
) -> HeldImage:
    """Store a new image: the base, a tar of changes on top, and a changed configuration.

    The tar may have whiteouts (.wh.NAME). `name` is the reference by which the image is found
    later; without one, it is found by its digest. `evict`: whether others may be removed to make
    room for it. The caller holds the base. This blocks.
    """
    asked = check_name(name) if name else None
    image = name or base.reference
    with store.disk_errors(image), store.keeping():
        record = store.read(base.digest)
        if record is None:
            raise ImageError(base.reference, "it is no longer in the store")
        if len(record.layers) >= MOST_LAYERS:
            raise ImageError(image, f"it would have more than {MOST_LAYERS} layers")
        blob, diff_id = _pack(layer, compression)
        made = _store(record, blob, diff_id, changes, image)
        held = store.hold(made.digest, name or made.digest)
        if held is None:
            raise ImageError(image, "it was removed while it was made", "Try again.")
        if asked is not None:
            store.set_name(str(asked), made.digest)
    if evict:
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


class LayerWriter:
    """Takes the tar of a layer, and packs it into a blob of the store."""

    def __init__(self, file: IO[bytes], compression: str) -> None:
        self._file, self._packer = file, PACKERS[compression]()
        self._plain, self._packed, self.size = hashlib.sha256(), hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Take bytes of the tar."""
        self._plain.update(data)
        self._keep(self._packer.compress(data))
        return len(data)

    def finish(self) -> tuple[str, str]:
        """Return the digests of the blob and of the tar."""
        self._keep(self._packer.flush())
        return f"sha256:{self._packed.hexdigest()}", f"sha256:{self._plain.hexdigest()}"

    def _keep(self, data: bytes) -> None:
        self._packed.update(data)
        self.size += self._file.write(data)


def _pack(layer: Layer, compression: str) -> tuple[Descriptor, str]:
    """Store a tar as a blob; return that, and the digest of the tar."""
    with store.scratch() as scratch:
        with (scratch / "blob").open("xb") as made:
            writer = LayerWriter(made, compression)
            if callable(layer):
                layer(writer)
            else:
                with _opened(layer) as source:
                    shutil.copyfileobj(source, writer, CHUNK)
            digest, diff_id = writer.finish()
        (scratch / "blob").replace(store.blob_path(digest))
    kind = f"{LAYER}+{compression}"
    return Descriptor(digest=digest, size=writer.size, media_type=kind), diff_id


def _gzip_packer() -> Packer:
    return zlib.compressobj(LEVEL, zlib.DEFLATED, 31)


def _zstd_packer() -> Packer:
    """Return a packer of Python 3.14, or of one of two packages; ImageError without any."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        packer = module.ZstdCompressor(level=ZSTD_LEVEL)
        return cast("Packer", packer.compressobj() if name == "zstandard" else packer)
    raise ImageError("", "packing by zstd is not possible here", extras.hint("images"))


PACKERS = {"gzip": _gzip_packer, "zstd": _zstd_packer}


@contextlib.contextmanager
def _opened(layer: Path | IO[bytes]) -> Iterator[IO[bytes]]:
    if isinstance(layer, Path):
        with layer.open("rb") as file:
            yield file
    else:
        yield layer

"""Images by reference: found in the store, or pulled, unpacked and stored."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cache import locks
from atoll.cache.json_files import write_json
from atoll.config import images_limit
from atoll.errors import ConfigError, ImageError
from atoll.images import in_use, sources, store
from atoll.images.layout import Layout
from atoll.images.manifest import chain_ids, host_architecture, parse_config
from atoll.images.reference import LocalReference, RegistryReference, parse
from atoll.images.store import Part, Record
from atoll.images.unpack import unpack_layer
from atoll.packages.progress import Progress
from atoll.text.amounts import size_text

if TYPE_CHECKING:
    from concurrent.futures import Future

    from atoll.images.image import HeldImage
    from atoll.images.layout import Source
    from atoll.images.manifest import Descriptor, Manifest
    from atoll.images.reference import Reference

PARALLEL = 4
BUILD_CACHE = "atoll/build-cache"
"""The name of results of build steps in the store, with a step's key for a tag."""


def find_image(reference: str, *, architecture: str | None = None) -> HeldImage | None:
    """Return a hold on the image of a reference if it is stored; no network is used.

    The manifest of a folder is read again each time. An archive would have to be unpacked for
    it, so this finds none of those.
    """
    asked = parse(reference)
    if isinstance(asked, LocalReference):
        if asked.kind != "oci":
            return None
        layout = Layout(Path(asked.path), reference, asked.tag)
        return store.hold(layout.manifest(architecture or host_architecture()).digest, reference)
    digest = store.named(_name(asked, architecture)) or asked.digest
    return store.hold(digest, reference) if digest else None


def get_image(
    reference: str,
    *,
    pull: bool = True,
    refresh: bool = False,
    architecture: str | None = None,
) -> HeldImage:
    """Return a hold on the image of a reference; pull it if it is not stored. This blocks.

    A tag is resolved once: `refresh` asks the registry again. With `pull` False, only the store
    and this machine's files are used. ConfigError if the reference is malformed, ImageError if
    there is no such image.
    """
    if refresh or architecture is not None:
        return _get(reference, pull, refresh, architecture)
    if (known := in_use.find(reference)) is not None:
        return known
    meaning = in_use.look(reference)
    held = _get(reference, pull, refresh, architecture)
    in_use.note(meaning, held)
    return held


def _get(reference: str, pull: bool, refresh: bool, architecture: str | None) -> HeldImage:  # noqa: FBT001 - as get_image
    asked = parse(reference)
    if not refresh and (held := find_image(reference, architecture=architecture)) is not None:
        return held
    if not pull and isinstance(asked, RegistryReference):
        hint = f"Type: atoll image pull {reference}"
        raise ImageError(reference, "it is not in the store, and pulling is not allowed", hint)
    name = _name(asked, architecture)
    with Progress(f"atoll: image {reference[:60]}") as progress, store.disk_errors(reference):
        progress.say("waiting for another process that gets it")
        with store.adding(name):
            if not refresh and (held := find_image(reference, architecture=architecture)):
                return held
            held = _add(asked, reference, architecture or host_architecture(), progress)
            store.set_name(name, held.image.digest)
    store.evict(images_limit(), spare=held.image.digest)
    return held


def name_image(held: HeldImage, name: str) -> HeldImage:
    """Give a held image one more name; return a hold under that name, in place of the given one."""
    asked = check_name(name)
    with store.disk_errors(name):
        store.set_name(str(asked), held.image.digest)
    named = store.hold(held.image.digest, name)
    held.close()
    if named is None:
        raise ImageError(name, "it was removed meanwhile", "Try again.")
    return named


def check_name(name: str) -> RegistryReference:
    """Return what a name for an image means; ConfigError if it cannot be one."""
    asked = parse(name)
    if not isinstance(asked, RegistryReference) or asked.digest:
        raise ConfigError(f"{name!r} is not a name for an image: write it as team/env:tag")
    return asked


def _name(asked: Reference, architecture: str | None) -> str:
    other = architecture is not None and architecture != host_architecture()
    return f"{asked} ({architecture})" if other else str(asked)


def _add(asked: Reference, reference: str, architecture: str, progress: Progress) -> HeldImage:
    with store.scratch() as scratch:
        progress.say("looking it up")
        with sources.open_source(asked, reference, scratch) as source:
            manifest = source.manifest(architecture)
            held = store.hold(manifest.digest, reference)
            if held is not None:
                return held
            pulled = Pull(source, manifest, reference, scratch, progress)
            pulled.run(architecture)
    held = store.hold(manifest.digest, reference)
    if held is None:
        raise ImageError(reference, "it was removed while it was pulled", "Try again.")
    return held


class Pull:
    """Brings the parts of one image into the store: fetches layers at once, unpacks them in turn.

    The caller holds the lock that keeps parts which no image uses.
    """

    def __init__(
        self, source: Source, manifest: Manifest, image: str, scratch: Path, progress: Progress
    ) -> None:
        self._source, self._manifest, self._image = source, manifest, image
        self._scratch, self._progress = scratch, progress
        self._received = 0
        self._total = sum(blob.size for blob in manifest.layers) or 1

    def run(self, architecture: str) -> None:
        """Fetch, unpack and store the image."""
        limit = images_limit()
        if self._total > limit:
            reason = f"its layers have {self._total:,} bytes, more than all images may ({limit:,})"
            raise ImageError(self._image, reason, "Set ATOLL_IMAGES_MB to more.")
        self._fetch(self._manifest.config)
        data = store.read_blob(self._manifest.config.digest, self._image)
        _, config, diff_ids = parse_config(data, self._image)
        if len(diff_ids) != len(self._manifest.layers):
            raise ImageError(self._image, "its manifest and configuration differ in their layers")
        if config.architecture and config.architecture != architecture:
            reason = f"it is for {config.architecture[:40]}, not for {architecture}"
            raise ImageError(self._image, reason)
        with ThreadPoolExecutor(PARALLEL, "atoll-pull") as threads:
            blobs = [threads.submit(self._fetch, blob) for blob in self._manifest.layers]
            try:
                parts = self._unpack(blobs, diff_ids)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        store.write_blob(self._manifest.data)
        store.write(
            Record(
                digest=self._manifest.digest,
                config=self._manifest.config.digest,
                layers=tuple(parts),
                architecture=config.architecture or architecture,
                created=time.time(),
            )
        )

    def _unpack(self, blobs: list[Future[Path]], diff_ids: tuple[str, ...]) -> list[Part]:
        parts: list[Part] = []
        chains = chain_ids(diff_ids)
        for number, (blob, descriptor) in enumerate(zip(blobs, self._manifest.layers, strict=True)):
            packed = blob.result()
            if all(other.done() for other in blobs):
                self._progress.show(
                    f"unpacking layer {number + 1} of {len(blobs)}", number / len(blobs)
                )
            lower = [store.layer_path(chain) for chain in chains[:number]]
            size = ensure_layer(packed, lower, chains[number], diff_ids[number], self._image)
            parts.append(
                Part(
                    blob=descriptor.digest,
                    folder=chains[number],
                    packed=descriptor.size,
                    unpacked=size,
                )
            )
            if sum(part.unpacked for part in parts) > images_limit():
                reason = f"it unpacks to more than all images may ({images_limit():,} bytes)"
                raise ImageError(self._image, reason, "Set ATOLL_IMAGES_MB to more.")
        return parts

    def _fetch(self, blob: Descriptor) -> Path:
        """Bring one blob into the store, unless it is there."""
        path = store.blob_path(blob.digest)
        with locks.alone(f"{path}.lock"):
            if not path.exists():
                self._source.fetch(blob, path, self._count)
        return path

    def _count(self, size: int) -> None:
        self._received += size
        done, whole = size_text(self._received), size_text(self._total)
        self._progress.show(f"{done} of {whole}", self._received / self._total)


def ensure_layer(blob: Path, lower: list[Path], chain: str, diff_id: str, image: str) -> int:
    """Unpack a layer into the store, unless it is there; return its size on the disk."""
    target = store.layer_path(chain)
    with locks.alone(f"{blob.parent}/{target.name}.layer.lock"):
        if target.exists():
            return store.layer_size(target)
        with store.scratch() as scratch:
            fresh = scratch / "layer"
            fresh.mkdir(mode=0o755)
            size = unpack_layer(blob, lower, fresh, diff_id, image)
            write_json(fresh / "layer.json", {"size": size, "diff_id": diff_id})
            fresh.rename(target)
    return size

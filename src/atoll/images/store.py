"""The store of images: ATOLL_CACHE/images, everything under its digest.

blobs/HEX             layers as they were packed, configurations, manifests
layers/HEX/           one unpacked layer: tree, owners.json, layer.json; HEX is the digest of it
                      and all layers below it, as paths are resolved through those
images/HEX.json       an image: the digests of its parts; HEX is the digest of its manifest
images/HEX.lock       flock: shared while in use, exclusive to remove; its mtime: last use
names/KEY.json        which image a reference means
names/KEY.lock        flock: one process pulls, others wait for it
building/             unfinished layers and removals
store.lock            flock: shared while an image is added, exclusive to remove unused parts
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from atoll.cache import locks
from atoll.cache import scratch as scratch_folders
from atoll.cache.json_files import read_json, write_json
from atoll.cache.scratch import refusal
from atoll.config import cache_folder
from atoll.errors import ImageError
from atoll.images.image import TREE, HeldImage, Image
from atoll.images.manifest import parse_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from atoll.guest.shared.messages import Json

_FOLDERS = ("blobs", "layers", "images", "names", "building")
_FULL = (errno.ENOSPC, errno.EDQUOT)
PART = ".part"
PART_SECONDS = 24 * 3600
"""How long part of a download is kept, to be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A layer of a stored image: the digests of its blob and of its folder, and their sizes."""

    blob: str
    folder: str
    packed: int
    unpacked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A stored image."""

    digest: str
    config: str
    """The digest of its configuration."""
    layers: tuple[Part, ...]
    architecture: str
    created: float

    @property
    def hex(self) -> str:
        """The digest as in names of files."""
        return self.digest.removeprefix("sha256:")

    @property
    def size(self) -> int:
        """Bytes that its layers take on the disk."""
        return sum(layer.packed + layer.unpacked for layer in self.layers)

    @property
    def used(self) -> float:
        """When it was last used, as time.time() counts."""
        try:
            return os.stat(root() / "images" / f"{self.hex}.lock").st_mtime
        except FileNotFoundError:
            return self.created

    def facts(self) -> Json:
        """Return the fields as JSON data."""
        return {**asdict(self), "layers": [asdict(layer) for layer in self.layers]}


def root() -> Path:
    """Return the folder of all images; ImageError if it is another user's."""
    folder = cache_folder() / "images"
    if reason := refusal(folder, _FOLDERS):
        raise ImageError("", reason, "Set ATOLL_CACHE to a folder of yours.")
    return folder


def blob_path(digest: str) -> Path:
    """Return where a blob is, or would be."""
    return root() / "blobs" / digest.removeprefix("sha256:")


def layer_path(chain: str) -> Path:
    """Return where an unpacked layer is, or would be."""
    return root() / "layers" / chain.removeprefix("sha256:")


def read_blob(digest: str, image: str) -> bytes:
    """Return a manifest or configuration; ImageError if it is not there."""
    try:
        return blob_path(digest).read_bytes()
    except OSError as exc:
        reason = f"{digest} is missing in the store: {exc.strerror}"
        raise ImageError(image, reason, "Remove the image and pull it again.") from None


def write_blob(data: bytes) -> str:
    """Store bytes, such as a manifest; return their digest."""
    digest = hashlib.sha256(data).hexdigest()
    path = blob_path(digest)
    if not path.exists():
        draft = path.with_name(f".{digest}.{os.getpid()}.{os.urandom(4).hex()}")
        draft.write_bytes(data)
        draft.replace(path)
    return f"sha256:{digest}"


def read(digest: str) -> Record | None:
    """Return the record of an image; None if it is not stored, or by another version of Atoll."""
    facts = read_json(root() / "images" / f"{digest.removeprefix('sha256:')}.json")
    if facts is None:
        return None
    try:
        layers = tuple(Part(**layer) for layer in facts["layers"])
        return Record(**{**facts, "layers": layers})
    except (KeyError, TypeError):
        return None


def write(record: Record) -> None:
    """Store the record of an image whose parts are all stored."""
    write_json(root() / "images" / f"{record.hex}.json", record.facts())


def hold(digest: str, reference: str) -> HeldImage | None:
    """Return a hold on a stored image; None if it is missing."""
    hexdigest = digest.removeprefix("sha256:")
    if not (root() / "images" / f"{hexdigest}.json").exists():
        return None
    lock = locks.share(str(root() / "images" / f"{hexdigest}.lock"))
    if lock is None:
        return None
    record = read(digest)
    if record is None:
        lock.drop()
        return None
    os.utime(lock.fd)
    try:
        return HeldImage(load(record, reference), lock)
    except BaseException:
        lock.drop()
        raise


def load(record: Record, reference: str) -> Image:
    """Return the image of a record."""
    _, config, _ = parse_config(read_blob(record.config, reference), reference)
    layers = tuple(layer_path(layer.folder) / TREE for layer in record.layers)
    return Image(
        reference=reference, digest=record.digest, layers=layers, config=config, size=record.size
    )


def everything() -> list[Record]:
    """Return all images, last used first."""
    names = [path.stem for path in (root() / "images").glob("*.json")]
    records = [record for name in names if (record := read(name)) is not None]
    return sorted(records, key=lambda record: record.used, reverse=True)


def names() -> dict[str, str]:
    """Return the digests of all names: references and architectures that were resolved."""
    facts = [read_json(path) for path in (root() / "names").glob("*.json")]
    return {str(entry["name"]): str(entry["digest"]) for entry in facts if entry}


def named(name: str) -> str | None:
    """Return the digest that a name stands for."""
    facts = read_json(name_file(name))
    return str(facts["digest"]) if facts and "digest" in facts else None


def set_name(name: str, digest: str) -> None:
    """Let a name stand for an image."""
    write_json(name_file(name), {"name": name, "digest": digest})


def forget_name(name: str) -> None:
    """Delete a name; its image stays."""
    name_file(name).unlink(missing_ok=True)


def name_file(name: str) -> Path:
    """Return the file that says what a name stands for, if it is one."""
    return root() / "names" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"


@contextlib.contextmanager
def adding(name: str) -> Iterator[None]:
    """Hold the locks for adding the image of a name: others wait, and no part is removed."""
    with locks.alone(str(name_file(name).with_suffix(".lock"))), keeping():
        yield


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Keep all parts of the store, also those that no image uses yet, while the block runs."""
    with locks.together(str(root() / "store.lock")):
        yield


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for one build, removed at its end."""
    with scratch_folders.scratch_folder(root() / "building") as folder:
        yield folder


@contextlib.contextmanager
def disk_errors(image: str) -> Iterator[None]:
    """Raise ImageError for a disk that is full or cannot be written."""
    try:
        yield
    except OSError as exc:
        hint = "Set ATOLL_CACHE to a folder of yours."
        if exc.errno in _FULL:
            hint = "Make room, or type: atoll image prune"
        raise ImageError(image, f"{root()}: {exc.strerror or exc}", hint) from None


def remove(digest: str) -> bool:
    """Remove an image; False if it is in use. Its parts go with the next `collect`."""
    hexdigest = digest.removeprefix("sha256:")
    with locks.alone_or_not(str(root() / "images" / f"{hexdigest}.lock")) as free:
        if not free:
            return False
        (root() / "images" / f"{hexdigest}.json").unlink(missing_ok=True)
    for name, target in names().items():
        if target == digest:
            forget_name(name)
    return True


def collect() -> int:
    """Remove the parts that no image uses; return their bytes. While one is added, do nothing."""
    with locks.alone_or_not(str(root() / "store.lock")) as free:
        if not free:
            return 0
        gone, freed = _unused()
    for folder in gone:
        scratch_folders.remove(folder)
    return freed


def _unused() -> tuple[list[Path], int]:
    """Delete unused blobs, and move unused layers out of the store; return those, and all bytes."""
    records = everything()
    used = {record.hex for record in records}
    used |= {record.config.removeprefix("sha256:") for record in records}
    parts = [layer for record in records for layer in record.layers]
    used |= {layer.blob.removeprefix("sha256:") for layer in parts}
    freed, gone, now = 0, [], time.time()
    for blob in (root() / "blobs").iterdir():
        facts = blob.stat()
        is_resumable = blob.name.endswith(PART) and now - facts.st_mtime < PART_SECONDS
        if blob.name not in used and not is_resumable:
            freed += facts.st_size
            blob.unlink()
    folders = {layer.folder.removeprefix("sha256:") for layer in parts}
    for layer in (root() / "layers").iterdir():
        if layer.name not in folders:
            freed += layer_size(layer)
            gone.append(scratch_folders.set_aside(layer, root() / "building"))
    for lock in (root() / "images").glob("*.lock"):
        if lock.stem not in used:
            lock.unlink()
    return gone, freed


def layer_size(folder: Path) -> int:
    """Return the bytes of an unpacked layer."""
    return int((read_json(folder / "layer.json") or {}).get("size", 0))


def total_size() -> int:
    """Return the bytes of all images; parts that several have count once."""
    parts = {layer for record in everything() for layer in record.layers}
    packed = {layer.blob: layer.packed for layer in parts}
    unpacked = {layer.folder: layer.unpacked for layer in parts}
    return sum(packed.values()) + sum(unpacked.values())


def evict(limit: int, spare: str) -> list[str]:
    """Remove the least recently used images over `limit` bytes, except those in use."""
    gone = []
    for record in reversed(everything()):
        if total_size() <= limit:
            break
        if record.digest != spare and remove(record.digest):
            gone.append(record.digest)
    if gone:
        collect()
    return gone

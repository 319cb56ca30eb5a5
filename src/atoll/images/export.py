"""Copies stored images into OCI layouts: folders that other tools read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ConfigError, ImageError
from atoll.images import store
from atoll.images.manifest import INDEX, MOST_MANIFEST, REF_NAME, parse_manifest, parse_object

if TYPE_CHECKING:
    from atoll.guest.shared.messages import Json
    from atoll.images.image import Image

KIND = "oci:"


def layout_of(target: str) -> tuple[Path, str]:
    """Return folder and tag of `oci:FOLDER[:TAG]`; ConfigError if it names no folder."""
    folder, colon, tag = target.removeprefix(KIND).rpartition(":")
    if not colon or "/" in tag:
        folder, tag = target.removeprefix(KIND), ""
    if not folder:
        raise ConfigError(f"{target!r} names no folder: write it as oci:./image")
    return Path(folder).expanduser().absolute(), tag


def write_layout(image: Image, target: str) -> None:
    """Copy a stored image to `oci:FOLDER[:TAG]`, a new layout or one that gets one more image."""
    folder, tag = layout_of(target)
    manifest = parse_manifest(store.read_blob(image.digest, target), target)
    entry: Json = {
        "mediaType": manifest.media_type,
        "digest": image.digest,
        "size": len(manifest.data),
    }
    if tag:
        entry["annotations"] = {REF_NAME: tag}
    with store.disk_errors(target):
        listed = [other for other in _listed(folder, target) if not _replaced(other, entry, tag)]
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        for blob in (*manifest.layers, manifest.config):
            _copy(store.blob_path(blob.digest), blobs / blob.hex)
        _copy(store.blob_path(image.digest), blobs / image.digest.removeprefix("sha256:"))
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*listed, entry]}
        draft = folder / f".index.{os.getpid()}.json"
        draft.write_text(json.dumps(index))
        draft.replace(folder / "index.json")


def _listed(folder: Path, target: str) -> list[Json]:
    """Return the images of a layout that is there; ImageError if the folder is another one."""
    index = folder / "index.json"
    if not index.exists():
        if folder.exists() and any(folder.iterdir()):
            hint = "Name a new folder, or one that is empty."
            raise ImageError(target, f"{folder} is not an OCI layout", hint)
        return []
    manifests = parse_object(index.read_bytes(), target, "index", MOST_MANIFEST).get("manifests")
    return [manifest for manifest in manifests if isinstance(manifest, dict)] if manifests else []


def _replaced(other: Json, entry: Json, tag: str) -> bool:
    """Return whether an image of a layout gives way to a new one: of the same tag or digest."""
    notes = other.get("annotations")
    known = notes.get(REF_NAME, "") if isinstance(notes, dict) else ""
    return known == tag or (other.get("digest") == entry["digest"] and not known)


def _copy(source: Path, target: Path) -> None:
    if not target.exists():
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(source, draft)
        draft.replace(target)

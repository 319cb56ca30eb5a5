"""Manifests, indexes and configurations of images: parsed, and checked before they are believed.

SECURITY: they come from a registry or a file. Sizes, counts and types are checked here, so that the
rest of this package works with fields of known types.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.errors import ImageError
from atoll.images.image import ImageConfig
from atoll.images.reference import DIGEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.guest.shared.messages import Json

MOST_MANIFEST, MOST_CONFIG = 4 << 20, 8 << 20
MOST_LAYERS = 127
"""What an overlay and other engines allow."""
OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker"
MANIFEST = f"{OCI}.manifest.v1+json"
INDEX = f"{OCI}.index.v1+json"
CONFIG = f"{OCI}.config.v1+json"
LAYER = f"{OCI}.layer.v1.tar"
INDEXES = (INDEX, f"{DOCKER}.distribution.manifest.list.v2+json")
MANIFESTS = (MANIFEST, f"{DOCKER}.distribution.manifest.v2+json")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
REF_NAME = "org.opencontainers.image.ref.name"
_MOST_WORDS, _MOST_TEXT = 10_000, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A blob: its digest, size and media type."""

    digest: str
    size: int
    media_type: str

    @property
    def hex(self) -> str:
        """The digest without its algorithm, as in names of files."""
        return self.digest.removeprefix("sha256:")

    def facts(self) -> Json:
        """Return it as a manifest has it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checked manifest of one image."""

    data: bytes
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def digest(self) -> str:
        """The image's digest."""
        return digest_of(self.data)


def digest_of(data: bytes) -> str:
    """Return the digest of bytes as manifests write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode(value: Json) -> bytes:
    """Return a manifest or configuration as bytes, always the same for the same value."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def host_architecture() -> str:
    """Return this machine's architecture as images name it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def parse_object(data: bytes, image: str, what: str, most: int) -> Json:
    """Return the JSON object in `data`; ImageError if it is too large or not an object."""
    if len(data) > most:
        raise ImageError(image, f"its {what} has more than {most:,} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ImageError(image, f"its {what} is not JSON") from None
    if not isinstance(value, dict):
        raise ImageError(image, f"its {what} is not a JSON object")
    return value


def media_type_of(value: Json, declared: str = "") -> str:
    """Return the media type of a manifest or index, from its field, its source or its shape."""
    written = value.get("mediaType") or declared
    if isinstance(written, str) and written in (*INDEXES, *MANIFESTS):
        return written
    return INDEX if "manifests" in value else MANIFEST


def choose(value: Json, image: str, architecture: str, tag: str = "") -> Descriptor:
    """Return the manifest of an index for a platform, or with a tag; ImageError if none fits."""
    listed = _list(value.get("manifests"), image, "index")
    if tag:
        names = {_tag(entry): entry for entry in listed}
        if tag not in names:
            known = ", ".join(sorted(filter(None, names))) or "none"
            raise ImageError(image, f"it has no tag {tag!r}: there are {known}")
        return descriptor(names[tag], image)
    if len(listed) == 1:
        return descriptor(listed[0], image)
    offered = []
    for entry in listed:
        place = entry.get("platform")
        if not isinstance(place, dict) or place.get("os") != "linux":
            continue
        if place.get("architecture") == architecture:
            return descriptor(entry, image)
        offered.append(str(place.get("architecture"))[:40])
    if not offered and listed:
        reason = "it has several images and none is marked for a platform"
        raise ImageError(image, reason, "Name one by its tag: oci:FOLDER:TAG.")
    reason = f"it has no image for {architecture}: there are {', '.join(offered) or 'none'}"
    raise ImageError(image, reason)


def _tag(entry: Json) -> str:
    notes = entry.get("annotations")
    return str(notes.get(REF_NAME, ""))[:200] if isinstance(notes, dict) else ""


def descriptor(value: Any, image: str) -> Descriptor:
    """Return a checked descriptor."""
    fields = value if isinstance(value, dict) else {}
    digest, size, kind = fields.get("digest"), fields.get("size"), fields.get("mediaType")
    right = isinstance(digest, str) and DIGEST.match(digest) and type(size) is int and size >= 0
    if not right:
        raise ImageError(image, "its manifest has a blob without a sha256 digest and a size")
    assert isinstance(digest, str) and isinstance(size, int)  # noqa: PT018 - for the type checker
    return Descriptor(digest=digest, size=size, media_type=kind if isinstance(kind, str) else "")


def parse_manifest(data: bytes, image: str) -> Manifest:
    """Return the checked manifest in `data`."""
    value = parse_object(data, image, "manifest", MOST_MANIFEST)
    if value.get("schemaVersion") != 2:
        reason = f"its manifest has version {value.get('schemaVersion')!r}, not 2"
        raise ImageError(image, reason, "Push it again with a current tool.")
    layers = _list(value.get("layers"), image, "manifest")
    if len(layers) > MOST_LAYERS:
        raise ImageError(image, f"it has {len(layers)} layers, more than {MOST_LAYERS}")
    config = descriptor(value.get("config"), image)
    if "image" not in config.media_type or config.size > MOST_CONFIG:
        raise ImageError(image, f"it is not a container image but {config.media_type[:80]!r}")
    return Manifest(
        data=data,
        media_type=media_type_of(value),
        config=config,
        layers=tuple(descriptor(layer, image) for layer in layers),
    )


def parse_config(data: bytes, image: str) -> tuple[Json, ImageConfig, tuple[str, ...]]:
    """Return the whole configuration, its checked part, and the layers' uncompressed digests."""
    whole = parse_object(data, image, "configuration", MOST_CONFIG)
    section = whole.get("config") or {}
    rootfs = whole.get("rootfs") or {}
    if not isinstance(section, dict) or not isinstance(rootfs, dict):
        raise ImageError(image, "its configuration is malformed")
    ids = _words(rootfs.get("diff_ids"), image)
    if not all(map(DIGEST.match, ids)):
        raise ImageError(image, "its configuration has a layer without a sha256 digest")
    config = ImageConfig(
        env=tuple(word for word in _words(section.get("Env"), image) if "=" in word.lstrip("=")),
        workdir=_text(section.get("WorkingDir"), image),
        user=_text(section.get("User"), image),
        entrypoint=_words(section.get("Entrypoint"), image),
        command=_words(section.get("Cmd"), image),
        labels=_labels(section.get("Labels"), image),
        architecture=_text(whole.get("architecture"), image),
    )
    return whole, config, ids


def chain_ids(diff_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the digest of each layer together with all layers below it, as OCI defines it."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(digest_of(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return tuple(chain)


def _list(value: Any, image: str, what: str) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ImageError(image, f"its {what} is malformed")
    return value


def _words(value: Any, image: str) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value or []
    if not isinstance(words, list) or len(words) > _MOST_WORDS:
        raise ImageError(image, "its configuration is malformed")
    return tuple(_text(word, image) for word in words)


def _text(value: Any, image: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value or len(value) > _MOST_TEXT:
        raise ImageError(image, "its configuration is malformed")
    return value


def _labels(value: Any, image: str) -> Mapping[str, str]:
    if not isinstance(value, dict):
        return {}
    return {_text(name, image): _text(text, image) for name, text in value.items()}

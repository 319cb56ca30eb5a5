"""Images in archives on this machine: `oci-archive` and `docker-archive`, unpacked to a layout.

SECURITY: an archive may be hostile. Only regular files whose names an image can have are written,
each to a name of our own choice; sizes and counts are limited; no link is made or followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import re
import tarfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.config import images_limit
from atoll.errors import ImageError
from atoll.images.layout import open_file
from atoll.images.manifest import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    MOST_CONFIG,
    MOST_LAYERS,
    MOST_MANIFEST,
    Descriptor,
    encode,
)
from atoll.images.unpacker.layer import Member
from atoll.images.unpacker.merged import HostileLayerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CHUNK = 1 << 20
MOST_MEMBERS = 10_000
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})\Z")
_LINKS = 8
_BROKEN = (
    OSError,
    ValueError,
    EOFError,
    RecursionError,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
)


def unpack_oci(archive: str, folder: Path, image: str) -> None:
    """Make an OCI layout in `folder` of an archive of one."""
    (folder / "blobs" / "sha256").mkdir(parents=True)
    room = images_limit()
    with _opened(archive, image) as tar:
        for member in _members(tar, image):
            name = member.name.removeprefix("./")
            blob = _BLOB.match(name)
            if not member.isreg() or not (blob or name == "index.json"):
                continue
            room -= member.size
            target = folder / "blobs" / "sha256" / blob[1] if blob else folder / "index.json"
            if room < 0 or target.exists():
                raise ImageError(image, "it is too large, or has a file twice")
            _copy(tar, member, target)


def unpack_docker(archive: str, folder: Path, image: str, tag: str = "") -> None:
    """Make an OCI layout in `folder` of one image in an archive of `docker save`."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    with _opened(archive, image) as tar:
        members = {member.name.removeprefix("./"): member for member in _members(tar, image)}
        config_name, layer_names = _chosen(tar, members, image, tag)
        config = _read(tar, members, config_name, image, MOST_CONFIG)
        layers, room = [], images_limit()
        for number, name in enumerate(layer_names):
            member = _find(members, name, image)
            room -= member.size
            if room < 0:
                raise ImageError(image, "it is larger than all images may be")
            draft = folder / f"layer{number}"
            digest = _copy(tar, member, draft)
            draft.replace(blobs / digest)
            layers.append(Descriptor(digest=f"sha256:{digest}", size=member.size, media_type=LAYER))
    facts = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _put(blobs, config, CONFIG).facts(),
        "layers": [layer.facts() for layer in layers],
    }
    manifest = _put(blobs, encode(facts), MANIFEST).facts()
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]}
    (folder / "index.json").write_bytes(encode(index))


def _chosen(
    tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], image: str, tag: str
) -> tuple[str, list[str]]:
    """Return the names of the configuration and the layers of the image to be taken."""
    try:
        listed = json.loads(_read(tar, members, "manifest.json", image, MOST_MANIFEST))
        images = {name: entry for entry in listed for name in (entry.get("RepoTags") or [""])}
        fitting = [entry for name, entry in images.items() if not tag or _has_tag(name, tag)]
        names = ", ".join(sorted(images)) or "none"
        if not fitting or (not tag and len(listed) > 1):
            reason = f"it has no image {tag!r}" if tag else "it has several images"
            raise ImageError(image, f"{reason}: there are {names}", "Write docker-archive:FILE:TAG")
        config, layers = fitting[0]["Config"], fitting[0]["Layers"]
        right = isinstance(config, str) and all(isinstance(name, str) for name in layers)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right, config, layers = False, "", []
    if not right or len(layers) > MOST_LAYERS:
        raise ImageError(image, "its manifest.json is malformed")
    return config, layers


def _has_tag(name: str, tag: str) -> bool:
    return tag in (name, name.rpartition(":")[2])


def _find(members: dict[str, tarfile.TarInfo], name: str, image: str) -> tarfile.TarInfo:
    """Return the regular file of a name; `docker save` writes equal layers as links."""
    for _ in range(_LINKS):
        member = members.get(name)
        if member is None:
            break
        if member.isreg():
            return member
        if not (member.issym() or member.islnk()):
            break
        folder = name.split("/")[:-1] if member.issym() else []
        for part in member.linkname.split("/"):
            folder = folder[:-1] if part == ".." else [*folder, part]
        name = "/".join(folder)
    raise ImageError(image, f"it has no file {name[:200]!r}")


def _read(
    tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str, image: str, most: int
) -> bytes:
    member = _find(members, name, image)
    source = tar.extractfile(member)
    if member.size > most or source is None:
        raise ImageError(image, f"{name[:200]!r} has more than {most:,} bytes")
    return source.read()


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    """Write a member to a new file; return its sha256."""
    source: Any = tar.extractfile(member)
    digest = hashlib.sha256()
    with target.open("xb") as made:
        while piece := source.read(CHUNK):
            digest.update(piece)
            made.write(piece)
    return digest.hexdigest()


def _put(blobs: Path, data: bytes, media_type: str) -> Descriptor:
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return Descriptor(digest=f"sha256:{digest}", size=len(data), media_type=media_type)


def _members(tar: tarfile.TarFile, image: str) -> list[tarfile.TarInfo]:
    members = []
    for member in tar:
        members.append(member)
        if len(members) > MOST_MEMBERS:
            raise ImageError(image, f"it has more than {MOST_MEMBERS:,} files")
    return members


@contextlib.contextmanager
def _opened(archive: str, image: str) -> Iterator[tarfile.TarFile]:
    """Open an archive, which may be compressed; ImageError for whatever is wrong with its tar."""
    try:
        with (
            open_file(Path(archive), image) as file,
            tarfile.open(fileobj=file, tarinfo=Member) as tar,
        ):
            yield tar
    except HostileLayerError as exc:
        raise ImageError(image, str(exc)) from None
    except _BROKEN as exc:
        if getattr(exc, "errno", None):  # of the disk, not of the tar
            raise
        reason = f"{archive} is not a whole tar: {str(exc).partition(chr(10))[0]}"
        raise ImageError(image, reason) from None

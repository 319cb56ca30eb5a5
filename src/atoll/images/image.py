"""A container image in the store: its layers as folders, and what its configuration says."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from atoll.cache.locks import Lock
    from atoll.guest.shared.messages import Json

TREE, OWNERS = "tree", "owners.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """What the configuration of an image says about the programs in it."""

    env: tuple[str, ...] = ()
    """Each as NAME=value."""
    workdir: str = ""
    user: str = ""
    """USER, UID, USER:GROUP or UID:GID; empty for root."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    architecture: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner and mode that an image gives to a file, where those on the disk differ."""

    uid: int
    gid: int
    mode: int
    """With set-id bits, which no file in the store has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image whose layers are unpacked.

    On the disk, every file belongs to the user who runs Atoll, has no set-id bit and can be read
    by its owner. What the image says instead is in a file beside each layer: see `owners`.
    """

    reference: str
    """As it was asked for."""
    digest: str
    """Of the manifest: sha256:..."""
    layers: tuple[Path, ...]
    """Folders, lowest first, to be used as lowerdir of an overlay. A deleted file is a character
    device 0:0, which an overlay understands on any file system, with or without `userxattr`."""
    config: ImageConfig
    size: int = 0
    """Bytes on the disk of all layers, packed and unpacked."""

    def owners(self) -> list[dict[str, Owner]]:
        """Return the owners of each layer's files by path ("etc/shadow"); others are 0:0."""
        return [read_owners(layer) for layer in self.layers]


def read_owners(layer: Path) -> dict[str, Owner]:
    """Return what the side file of an unpacked layer says."""
    facts = json.loads((layer.parent / OWNERS).read_bytes())
    return {path: Owner(uid=uid, gid=gid, mode=mode) for path, (uid, gid, mode) in facts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges:
    """What a new image says instead of its base; None leaves it as it is."""

    env: tuple[str, ...] = ()
    """Set in addition to, or instead of, those of the same name."""
    workdir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    created_by: str = "atoll"
    """What made the layer, for the image's history."""

    def apply(self, config: Json) -> Json:
        """Return the `config` object of an OCI configuration with these changes."""
        names = {entry.partition("=")[0] for entry in self.env}
        kept = [entry for entry in config.get("Env") or () if entry.partition("=")[0] not in names]
        changed = {**config, "Env": [*kept, *self.env]}
        new: Json = {"WorkingDir": self.workdir, "User": self.user}
        new |= {"Entrypoint": _listed(self.entrypoint), "Cmd": _listed(self.command)}
        if self.labels:
            new["Labels"] = {**(config.get("Labels") or {}), **self.labels}
        return changed | {name: value for name, value in new.items() if value is not None}


def _listed(words: tuple[str, ...] | None) -> list[str] | None:
    return None if words is None else list(words)


class HeldImage:
    """An image in use: it stays in the store until `close`, or the end of this process."""

    def __init__(self, image: Image, lock: Lock) -> None:
        """`lock` has already counted this hold."""
        self.image, self._lock = image, lock
        self._open = True

    def again(self) -> HeldImage:
        """Return one more hold on the same image."""
        assert self._open
        self._lock.add()
        return HeldImage(self.image, self._lock)

    def again_if_used(self) -> HeldImage | None:
        """Return one more hold, also if this one is closed; None if this process has no other."""
        if not self._lock.add():
            return None
        os.utime(self._lock.fd)  # it is used now
        return HeldImage(self.image, self._lock)

    def close(self) -> None:
        """Release the image."""
        if self._open:
            self._open = False
            self._lock.drop()

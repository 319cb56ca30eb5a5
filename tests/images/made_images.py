"""Images made by hand, entry by entry: as odd or as hostile as a test needs them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
DEVICE, BLOCK, FIFO = tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE
Entry = tuple[str, bytes, dict[str, Any]]


def file(name: str, data: bytes = b"x", **fields: Any) -> Entry:
    return name, FILE, {"data": data, **fields}


def folder(name: str, **fields: Any) -> Entry:
    return name, FOLDER, {"mode": 0o755, **fields}


def link(name: str, target: str) -> Entry:
    return name, LINK, {"linkname": target}


def hard(name: str, target: str) -> Entry:
    return name, HARD, {"linkname": target}


def tar_of(entries: Sequence[Entry]) -> bytes:
    """The entries as a tar; `fields` set attributes of their headers."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, fields in entries:
            member, given = tarfile.TarInfo(name), dict(fields)
            data = given.pop("data", b"")
            member.type, member.size = kind, len(data)
            for key, value in given.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(data))
    return raw.getvalue()


class Layout:
    """An OCI layout in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        name = hashlib.sha256(data).hexdigest()
        (self.path / "blobs" / "sha256" / name).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data)}

    def image(
        self,
        *layers: Sequence[Entry] | bytes,
        config: dict[str, Any] | None = None,
        pack: Any = None,
        manifest: dict[str, Any] | None = None,
    ) -> str:
        """Write an image of layers, each of entries or a tar; return its reference."""
        tars = [layer if isinstance(layer, bytes) else tar_of(layer) for layer in layers]
        packed = [(pack or (lambda data: gzip.compress(data, 1)))(tar) for tar in tars]
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        facts = {
            "architecture": "amd64",
            "os": "linux",
            "config": config or {},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars],
            },
        }
        oci = "application/vnd.oci.image"
        whole = {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": self.blob(json.dumps(facts).encode(), f"{oci}.config.v1+json"),
            "layers": [self.blob(data, kind) for data in packed],
            **(manifest or {}),
        }
        entry = self.blob(json.dumps(whole).encode(), f"{oci}.manifest.v1+json")
        self.index([entry])
        return f"oci:{self.path}"

    def index(self, entries: list[dict[str, Any]]) -> None:
        text = json.dumps({"schemaVersion": 2, "manifests": entries})
        (self.path / "index.json").write_text(text)

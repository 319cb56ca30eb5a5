"""Recognises the kind of an archive by its first bytes, never by its name."""

from __future__ import annotations

import tarfile

from atoll.errors import ArchiveError

HEAD_BYTES = 1024
_MAGIC = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"%PDF-", "pdf"),
    (b"\x1f\x8b", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)
PACKED = ("gz", "bz2", "xz", "zst")


def kind_of(head: bytes, name: str) -> str:
    """Return zip, 7z, pdf, tar, or the compression: gz, bz2, xz, zst."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if is_tar(head):
        return "tar"
    if b"%PDF-" in head:
        return "pdf"
    text = f"{name!r} is not a supported archive: use zip, tar (gz, bz2, xz, zst), 7z or pdf"
    raise ArchiveError(text)


def is_tar(head: bytes) -> bool:
    """Return whether these bytes begin a tar: its first header has the right checksum."""
    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return head[:512] == bytes(512) and len(head) >= 1024
    return True

"""Archives made for tests, and a reader of them in this process: no start of another, so quick."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile

from atoll.agent.archive.readers import Reader, open_reader
from atoll.agent.archive.source import Source, as_descriptor
from atoll.agent.archive.types import ArchiveLimits, Clock


class Opened:
    """A reader in this process, and the descriptor it reads."""

    def __init__(self, data: bytes, name: str = "test", **limits) -> None:
        held = ArchiveLimits(**limits)
        self.fd = as_descriptor(data, held)
        try:
            self.reader: Reader = open_reader(Source(self.fd, held), name, held, Clock(held))
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> Reader:
        return self.reader

    def __exit__(self, *_) -> None:
        os.close(self.fd)


def make_zip(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these, by name."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def make_tar(files: dict[str, bytes], mode: str = "") -> bytes:
    """A tar of these, by name; `mode` as `:gz`."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w" + mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def make_7z(
    files: dict[str, bytes], password: str | None = None, filters: list[dict] | None = None
) -> bytes:
    """A 7z of these, by name."""
    import py7zr

    made = io.BytesIO()
    if not password:
        filters = filters or [{"id": py7zr.FILTER_LZMA2, "preset": 1}]
    with py7zr.SevenZipFile(made, "w", filters=filters, password=password) as archive:
        for name, data in files.items():
            archive.writestr(data, name)
    return made.getvalue()


def tar_block(name: str, size: bytes, kind: bytes = b"0", magic: bytes = b"ustar\x0000") -> bytes:
    """One header, by hand, with whatever size it is to claim."""
    head = name.encode().ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2
    head += size.ljust(12, b"\0")[:12] + b"00000000000\0" + b" " * 8 + kind + bytes(100) + magic
    head = head.ljust(512, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def make_pdf(*pages: bytes) -> bytes:
    """A PDF with a line of text on each page."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    kids = []
    for text in pages:
        stream = b"BT /F1 18 Tf 72 700 Td (%s) Tj ET" % text
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    return _with_table(objects)


def _with_table(objects: list[bytes]) -> bytes:
    made, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    count = len(objects) + 1
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, len(made))
    return made + b"xref\n0 %d\n0000000000 65535 f \n" % count + table + end


def overlapping_zip(entries: int) -> bytes:
    """Many directory entries for one and the same packed data."""
    whole = make_zip({"a": b"\0" * 100_000})
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        start = archive.start_dir
    directory = whole[start:-22]
    rows = b"".join(directory[:46] + bytes([97 + n]) + directory[47:] for n in range(entries))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, entries, entries, len(rows), start, 0)
    return whole[:start] + rows + end

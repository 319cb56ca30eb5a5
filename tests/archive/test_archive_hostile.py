"""Archives that lie, break off or lead astray are refused or reported; nothing else happens."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import sys
import tarfile
import zipfile

import pytest
from archivekit import Opened, make_7z, make_pdf, make_tar, make_zip, overlapping_zip, tar_block

import atoll

pytestmark = pytest.mark.spec("R4.5")


def skipped(data: bytes) -> dict[str, str]:
    with Opened(data) as reader:
        return dict(reader.catalog.skipped)


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/passwd", "absolute"),
        ("//server/share", "absolute"),
        ("../up", "leads out by .."),
        ("a/../../up", "leads out by .."),
        ("a\\..\\..\\up", "leads out by .."),
        ("C:\\windows\\x", "absolute"),
        ("c:x", "absolute"),
        ("line\nend", "control characters"),
        ("\x1b[31mred", "control characters"),
    ],
)
def test_a_name_that_leads_out_is_skipped_and_said_to_be(make, name, reason):
    with Opened(make({name: b"evil", "good": b"fine"})) as reader:
        assert list(reader.catalog.keys) == ["good"]
        [(shown, why)] = reader.catalog.skipped
        assert reason in why
        with pytest.raises(atoll.ArchiveError, match="unsafe name"):
            reader.read(shown)


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_names_are_shown_with_slashes_and_without_dots_before_them(make):
    with Opened(make({"./a/b.txt": b"1", "c\\d.txt": b"2"})) as reader:
        assert (reader.read("a/b.txt"), reader.read("c/d.txt")) == (b"1", b"2")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_two_with_one_name_the_first_is_kept_and_the_other_reported():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a", b"first")
        archive.writestr("a", b"second")
    with Opened(made.getvalue()) as reader:
        assert reader.read("a") == b"first"
        assert reader.catalog.skipped == [("a", "duplicate name")]


def test_links_and_devices_of_a_tar_are_skipped():
    made = io.BytesIO()
    kinds = {
        "sym": tarfile.SYMTYPE,
        "hard": tarfile.LNKTYPE,
        "fifo": tarfile.FIFOTYPE,
        "disk": tarfile.BLKTYPE,
    }
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind in kinds.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    found = skipped(made.getvalue())
    assert found == {"sym": "link", "hard": "link", "fifo": "device", "disk": "device"}


def test_links_and_devices_of_a_zip_are_skipped():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, mode in (("sym", stat.S_IFLNK), ("disk", stat.S_IFBLK)):
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (mode | 0o777) << 16
            archive.writestr(info, "/etc/passwd")
    assert skipped(made.getvalue()) == {"sym": "link", "disk": "device"}


def test_a_sparse_file_that_claims_a_terabyte_is_skipped():
    head = tar_block("huge", b"00000000000\0", b"S", magic=b"ustar  \0")
    head = (
        head[:386]
        + b"00000000000\x0000000000000\0".ljust(97, b"\0")
        + b"77777777777\0"
        + head[495:]
    )
    head = head[:148] + b" " * 8 + head[156:]
    head = head[:148] + b"%06o\0 " % sum(head) + head[156:]
    assert skipped(head + bytes(1024)) == {"huge": "sparse file"}


def test_an_encrypted_member_is_named():
    data = bytearray(make_zip({"secret": b"x", "open": b"y"}))
    data[6] |= 1  # the flag, in the entry and in the directory
    data[data.index(b"PK\1\2") + 8] |= 1
    with Opened(bytes(data)) as reader:
        assert reader.catalog.skipped == [("secret", "encrypted")]
        assert reader.read("open") == b"y"
        with pytest.raises(atoll.ArchiveError, match="'secret' cannot be read: encrypted"):
            reader.read("secret")


def test_entries_that_share_packed_data_are_refused():
    with (
        pytest.raises(atoll.ArchiveError, match="overlaps another entry"),
        Opened(overlapping_zip(20)),
    ):
        pass
    assert len(overlapping_zip(1)) > 100
    with Opened(overlapping_zip(1)) as reader:
        assert len(reader.read("a")) == 100_000


def test_a_directory_that_declares_less_than_there_is_gives_no_more_than_declared():
    data = bytearray(make_zip({"a": b"x" * 5000}))
    at = bytes(data).index(b"PK\1\2") + 24
    data[at : at + 4] = struct.pack("<L", 10)
    with pytest.raises(Exception, match="CRC"), Opened(bytes(data)) as reader:
        reader.read("a")


def test_data_descriptors_and_zip64_are_read():
    class Unseekable(io.RawIOBase):
        def __init__(self):
            self.data = b""

        def writable(self):
            return True

        def write(self, piece):
            self.data += bytes(piece)
            return len(piece)

    made = Unseekable()
    with zipfile.ZipFile(made, "w") as archive, archive.open("a", "w", force_zip64=True) as member:
        member.write(b"hello")
    with Opened(made.data) as reader:
        assert reader.read("a") == b"hello"


@pytest.mark.parametrize("mode", ["", ":gz", ":bz2", ":xz"])
def test_a_tar_that_is_cut_off_is_an_error(mode):
    whole = make_tar({"a": os.urandom(30_000), "b": os.urandom(30_000)}, mode)
    with (
        pytest.raises((atoll.ArchiveError, tarfile.ReadError)),
        Opened(whole[: len(whole) // 2]) as reader,
    ):
        reader.read("a")
        reader.read("b")


def test_a_zip_that_is_cut_off_is_an_error():
    whole = make_zip({"a": os.urandom(1000)})
    with pytest.raises(zipfile.BadZipFile), Opened(whole[:500]):
        pass


def test_a_tar_that_is_damaged_after_its_first_member_is_no_shorter_tar():
    data = bytearray(make_tar({"a": b"1", "b": b"2"}))
    data[1024 + 148] ^= 1  # the checksum of the second header
    with pytest.raises(atoll.ArchiveError, match="damaged at byte 1024"), Opened(bytes(data)):
        pass


def test_a_tar_member_of_negative_size_ends_at_once():
    data = tar_block("a", b"\xff" * 12) + bytes(1024)
    with pytest.raises((atoll.ArchiveError, tarfile.ReadError)), Opened(data, max_seconds=5):
        pass


def test_a_tar_member_that_claims_more_than_there_is_is_an_error():
    data = tar_block("a", b"00000100000\0") + bytes(1024)
    with pytest.raises(tarfile.ReadError), Opened(data):
        pass


def test_gzip_streams_behind_each_other_are_one_file():
    with Opened(gzip.compress(b"one ") + gzip.compress(b"two") + bytes(512), "log.gz") as reader:
        assert reader.read("log") == b"one two"


def test_garbage_is_no_archive():
    with (
        pytest.raises(atoll.ArchiveError, match="'x' is not a supported archive: use zip, tar"),
        Opened(b"hello" * 500, "x"),
    ):
        pass


def test_the_kind_is_seen_in_the_bytes_whatever_the_name():
    with Opened(make_tar({"a": b"x"}, ":gz"), "innocent.zip") as reader:
        assert reader.kind == "tar.gz"


def test_an_encrypted_7z_is_refused():
    with (
        pytest.raises(atoll.ArchiveError, match="the 7z is encrypted"),
        Opened(make_7z({"a": b"x"}, "word")),
    ):
        pass


@pytest.mark.parametrize(
    ("module", "make"), [("py7zr", make_7z), ("pypdfium2", lambda _: make_pdf(b"x"))]
)
def test_a_library_that_is_missing_is_named_with_what_to_type(module, make, monkeypatch):
    data = make({"a": b"x"})
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(atoll.ArchiveError, match=rf"need {module}. Type: .*pip install .*'{module}"),
        Opened(data),
    ):
        pass

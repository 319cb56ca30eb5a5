"""Every limit of ArchiveLimits is hit by a file made for it, and named with its value."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest
from archivekit import Opened, make_7z, make_tar, make_zip, tar_block

import atoll
from atoll.agent.archive import ArchiveLimits, open_archive, readers
from atoll.errors import ArchiveLimitError

pytestmark = pytest.mark.spec("R4.5", "R4.20")
MIB = 1 << 20


def hit(data: bytes, limit: str, *, read: str = "", **limits) -> ArchiveLimitError:
    with pytest.raises(ArchiveLimitError) as caught, Opened(data, **limits) as reader:
        if read:
            reader.read(read)
    assert caught.value.limit == limit
    assert limit in str(caught.value)
    return caught.value


def test_a_file_larger_than_may_be_is_refused_unread():
    error = hit(make_zip({"a": b"x"}), "max_archive_bytes", max_archive_bytes=50)
    assert str(error) == (
        "the archive in bytes is 103, more than max_archive_bytes=50: "
        "raise it if the file is trusted"
    )


@pytest.mark.parametrize("make", [make_zip, make_tar, make_7z])
def test_a_member_larger_than_may_be_is_listed_and_not_read(make):
    data = make({"big": b"x" * 2000, "small": b"y"})
    with Opened(data, max_member_bytes=1000) as reader:
        assert list(reader.catalog.sizes) == ["big", "small"]
        assert reader.read("small") == b"y"
        with pytest.raises(ArchiveLimitError, match="'big' in bytes is 2000, more than max_member"):
            reader.read("big")


def test_a_packed_file_of_no_declared_size_is_stopped_while_it_comes_out():
    data = gzip.compress(b"x" * 5000)
    hit(data, "max_member_bytes", read="test", max_member_bytes=1000)


@pytest.mark.parametrize("make", [make_zip, make_tar, make_7z])
def test_members_that_are_too_much_together_are_refused(make):
    hit(make({"a": b"x" * 600, "b": b"y" * 600}), "max_total_bytes", max_total_bytes=1000)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_tar_is_counted_as_it_comes_out_even_where_nothing_is_kept(pack):
    odd = tar_block("no file", b"%011o\0" % (2 * MIB), b"Z") + bytes(2 * MIB + 1024)
    with Opened(pack(odd), max_ratio=1e9) as reader:
        assert reader.catalog.skipped == [("no file", "device")]
    hit(pack(odd), "max_total_bytes", max_total_bytes=MIB, max_ratio=1e9)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_bomb_is_stopped_by_its_ratio(pack):
    hit(pack(make_tar({"a": bytes(2 * MIB)})), "max_ratio")


@pytest.mark.parametrize("make", [make_zip, make_7z])
def test_a_bomb_that_declares_itself_is_stopped_by_its_ratio(make):
    error = hit(make({"a": bytes(2 * MIB)}), "max_ratio")
    assert error.value > 500


def test_a_7z_member_that_gives_more_than_it_declares_is_stopped():
    with Opened(make_7z({"a": b"x"}), max_member_bytes=1000) as reader:
        member = readers._factory(reader, {}).create("a")
        member.write(b"x" * 600)
        with pytest.raises(ArchiveLimitError, match="'a' in bytes is 1200, more than max_member"):
            member.write(b"x" * 600)


def test_one_member_that_is_a_bomb_is_refused_and_the_others_read():
    filler = bytes(range(256)) * 4 * 100  # not packed: it hides the ratio of the whole
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("filler", filler)
        archive.writestr("bomb", bytes(3 * MIB), zipfile.ZIP_DEFLATED)
    with Opened(made.getvalue()) as reader:
        assert reader.read("filler") == filler
        with pytest.raises(ArchiveLimitError, match=r"the ratio of 'bomb' is .* max_ratio=200"):
            reader.read("bomb")


def test_a_small_file_may_have_any_ratio():
    with Opened(make_zip({"a": bytes(MIB)})) as reader:
        assert len(reader.read("a")) == MIB


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_too_many_entries_are_refused(make):
    error = hit(make({f"f{n}": b"" for n in range(20)}), "max_members", max_members=10)
    assert error.most == 10


def test_folders_count_as_entries():
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for number in range(20):
            info = tarfile.TarInfo(f"d{number}")
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
    hit(made.getvalue(), "max_members", max_members=10)


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_name_that_is_too_long_is_refused(make):
    hit(make({"n" * 300: b""}), "max_name_bytes", max_name_bytes=200)


def test_a_zip_with_a_huge_directory_is_refused_before_it_is_parsed():
    data = make_zip({f"file number {n}": b"" for n in range(200)})
    hit(data, "max_header_bytes", max_header_bytes=5000, max_members=10)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_tar_header_of_a_gigabyte_is_refused_before_it_is_read(kind):
    data = tar_block("head", b"10000000000\0", kind) + bytes(2048)
    error = hit(data, "max_header_bytes")
    assert error.value >= 1 << 30


def test_a_chain_of_headers_without_end_is_an_error():
    record = b"11 path=ab\n"
    chain = (tar_block("p", b"%011o\0" % len(record), b"x") + record.ljust(512, b"\0")) * 2000
    with pytest.raises((atoll.ArchiveError, RecursionError)), Opened(chain):
        pass


def test_xz_that_wants_more_memory_than_may_be_is_refused():
    data = lzma.compress(b"x", preset=9)  # 64 MiB of dictionary
    error = hit(data, "max_memory_bytes", max_memory_bytes=64 * MIB, read="test")
    assert str(error).startswith("what xz needs is more than max_memory_bytes=67108864")


def test_archives_within_archives_end_at_the_depth_that_may_be():
    data = b"core"
    for level in range(3):
        data = make_zip({f"level{level}": data})
    limits = ArchiveLimits(max_depth=2)
    with open_archive(data, limits=limits) as outer, outer.open("level2") as inner:
        assert [one.name for one in inner.members] == ["level1"]
        with pytest.raises(ArchiveLimitError, match="is 3, more than max_depth=2"):
            inner.open("level1")


def test_time_that_is_up_is_named():
    hit(make_tar({"a": b"x"}), "max_seconds", max_seconds=1e-9)


@pytest.mark.parametrize("field", ["max_members", "max_seconds", "max_ratio"])
def test_a_limit_that_cannot_be_is_refused(field):
    with pytest.raises(atoll.ConfigError, match=field):
        ArchiveLimits(**{field: 0})

"""Hostile layers: nothing lands outside of the store, and a refused layer leaves nothing in it."""

from __future__ import annotations

import gzip
import os
import stat
import subprocess
import tarfile

import pytest
from made_images import (
    BLOCK,
    DEVICE,
    FIFO,
    HARD,
    LINK,
    file,
    folder,
    hard,
    link,
    tar_of,
)

from atoll.errors import ImageError
from atoll.images import get_image, store, unpack
from atoll.images.unpacker.layer import MOST_HEADER

DEEP = "/".join(["d"] * 3000)
LONG = "/".join(["n" * 200] * 25)


def cyclic() -> list:
    return [link("a", "b"), link("b", "a"), file("a/x")]


def sparse_bomb() -> bytes:
    """A file of a terabyte in one block, as GNU tar writes sparse files."""
    header = tarfile.TarInfo("huge")
    header.type, header.size = tarfile.GNUTYPE_SPARSE, 0
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[483:495] = b"%011o\0" % (1 << 32)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


def huge_header() -> bytes:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, MOST_HEADER + 1
    return header.tobuf(tarfile.USTAR_FORMAT) + bytes(MOST_HEADER + 512) + bytes(1024)


def nested_headers() -> bytes:
    header = tarfile.TarInfo("pax")
    record = b"13 comment=x\n"
    header.type, header.size = tarfile.XHDTYPE, len(record)
    return (header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")) * 5000 + bytes(1024)


def negative_size() -> bytes:
    block = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


def pax(records: dict[str, str], *entries: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A header of records before other blocks, as no honest writer would write it."""
    data = b"".join(_record(key.encode(), value.encode()) for key, value in records.items())
    header = tarfile.TarInfo("pax")
    header.type, header.size = kind, len(data)
    padded = data.ljust(-(-len(data) // 512) * 512, b"\0")
    return header.tobuf(tarfile.USTAR_FORMAT) + padded + b"".join(entries) + bytes(1024)


def _record(key: bytes, value: bytes) -> bytes:
    text = b" " + key + b"=" + value + b"\n"
    size = len(text) + 1
    while len(b"%d" % size) + len(text) != size:
        size += 1
    return b"%d" % size + text


def block(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, target: str = "") -> bytes:
    """One header, whatever follows it."""
    header = tarfile.TarInfo(name)
    header.type, header.size, header.linkname = kind, size, target
    return header.tobuf(tarfile.USTAR_FORMAT)


def gnu(kind: bytes, text: bytes, *entries: bytes) -> bytes:
    """A long name or a long link of GNU tar before other blocks."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = kind, len(text)
    data = text.ljust(-(-len(text) // 512) * 512, b"\0")
    return header.tobuf(tarfile.GNU_FORMAT) + data + b"".join(entries)


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "huge"}


def cut_short() -> bytes:
    return tar_of([file("x", b"y" * 5000)])[:2000]


REFUSED = {
    "whiteout of dot": ([[file(".wh..")]], "deletes a file with the name '.'"),
    "whiteout of dot dot": ([[file(".wh...")]], "deletes a file with the name '..'"),
    "whiteout without a name": ([[file(".wh.")]], "deletes a file with the name ''"),
    "whiteout of a whiteout": ([[file(".wh..wh.x")]], "deletes a file with the name '.wh.x'"),
    "name that is dot dot": ([[file("a/..")]], "ends with .."),
    "hard link to nothing": ([[hard("a", "b")]], "leads to nothing"),
    "hard link out": ([[hard("a", "../../../../etc/passwd")]], "leads to nothing"),
    "hard link to an absolute path": ([[hard("a", "/etc/passwd")]], "leads to nothing"),
    "hard link through a link": ([[link("a", "/etc"), hard("b", "a/passwd")]], "leads to nothing"),
    "hard link to a folder": ([[folder("a"), hard("b", "a")]], "leads to a folder"),
    "hard link to the root": ([[hard("b", ".")]], "leads to a folder"),
    "hard link in a cycle": ([[hard("a", "b"), hard("b", "a")]], "leads to nothing"),
    "hard link in place of its folder": ([[file("a/b"), hard("a", "a/b")]], "its own target"),
    "hard link to what was deleted": ([[file("a")], [file(".wh.a"), hard("b", "a")]], "nothing"),
    "links in a cycle": ([cyclic()], "too many links"),
    "path through a file": ([[file("a"), file("a/b")]], "leads through a file"),
    "path through a file below": ([[file("a")], [file("a/b")]], "leads through a file"),
    "path through a fifo": ([[("a", FIFO, {}), file("a/b")]], "leads through a file"),
    "folder 3,000 deep": ([[folder(DEEP)]], "more than 3,800 bytes"),
    "path of 5,000 bytes": ([[file(LONG)]], "more than 3,800 bytes"),
    "deep by a link to itself": (
        [
            [
                folder("/".join(["e" * 90] * 40)),
                link("f", "/".join(["e" * 90] * 40)),
                file(f"f/{LONG}"),
            ]
        ],
        "more than 3,800 bytes",
    ),
    "root that is a file": ([[file("./")]], "root is not a folder"),
    "sparse file of gigabytes": ([sparse_bomb()], "unpacks to more than"),
    "header of a megabyte": ([huge_header()], "a header in it has more than"),
    "five thousand headers in a row": ([nested_headers()], "malformed"),
    "negative size": ([negative_size()], ""),
    "cut short": ([cut_short()], ""),
    "not a tar": ([b"no tar at all" * 100], ""),
    "name of 300 bytes": ([[file("n" * 300)]], "File name too long"),
    "name with NUL by PAX": ([pax({"path": "a\0/../b"}, block("x"))], "zero byte"),
    "link with NUL by PAX": ([pax({"linkpath": "a\0b"}, block("x", LINK))], "null"),
    "link of 5,000 bytes": ([[link("a", "t" * 5000)]], "File name too long"),
    "empty link": ([[link("a", "")]], "No such file"),
    "size by PAX that is too large": ([pax({"size": str(1 << 50)}, block("x"))], "unpacks to more"),
    "negative size by PAX": ([pax({"size": "-512"}, block("x"), block("y"))], ""),
    "records of PAX that overlap": ([pax({}, block("x"))[:512] + b"0 a=b\n" * 80], ""),
    "sparse file by PAX, of terabytes": (
        [pax({**SPARSE, "GNU.sparse.realsize": str(1 << 44)}, block("x", size=512), b"0\n" * 256)],
        "unpacks to more than",
    ),
    "sparse map of PAX without an end": (
        [pax({**SPARSE, "GNU.sparse.realsize": "9"}, block("x", size=512), b"9" * 512)],
        "",
    ),
    "long name by GNU, of dots": ([gnu(tarfile.GNUTYPE_LONGNAME, b"a/b/..", block("x"))], "ends"),
    "hard link by PAX out of the root": (
        [pax({"linkpath": "../../../../../../etc/passwd"}, block("x", HARD))],
        "leads to nothing",
    ),
    "hard link by GNU out of the root": (
        [gnu(tarfile.GNUTYPE_LONGLINK, b"/proc/self/root/etc/passwd", block("x", HARD))],
        "leads to nothing",
    ),
    "hard link to a device": ([[("a", DEVICE, {}), hard("b", "a")]], "leads to nothing"),
    "hard link to a whiteout": ([[file("a")], [file(".wh.a"), hard("b", ".wh.a")]], "nothing"),
    "links in a chain of 50": (
        [[folder("l50"), *(link(f"l{n}", f"l{n + 1}") for n in range(50)), file("l0/x")]],
        "too many links",
    ),
}

KEPT = {
    "path with dot dot": ([[file("../../evil")]], {"evil"}),
    "absolute path": ([[file("/evil")]], {"evil"}),
    "through a link out": ([[link("a", "/../.."), file("a/evil")]], {"a", "evil"}),
    "through an absolute link": (
        [[link("a", "/tmp"), file("a/evil")]],
        {"a", "tmp", "tmp/evil"},
    ),
    "through a link of the layer below": (
        [[folder("real"), link("a", "real")], [file("a/evil")]],
        {"real", "real/evil"},
    ),
    "through a link of two layers below": (
        [[link("a", "../../../b")], [folder("b")], [file("a/../a/evil")]],
        {"b", "b/evil"},
    ),
    "whiteout through a link": (
        [[file("real/x"), link("a", "real")], [file("a/.wh.x")]],
        {"real", "real/x (deleted)"},
    ),
    "opaque through a link out": (
        [[link("a", "/.."), file("b")], [file("a/.wh..wh..opq")]],
        {"a (deleted)", "b (deleted)"},
    ),
    "file in place of a link": ([[link("a", "/etc/passwd"), file("a")]], {"a"}),
    "hard link to a link, then a file": (
        [[link("a", "/etc/evil"), hard("b", "a"), file("b")]],
        {"a", "b"},
    ),
    "folder in place of a link": (
        [[link("a", "/etc"), folder("a"), file("a/evil")]],
        {"a", "a/evil"},
    ),
    "character device": ([[("sda", DEVICE, {"devmajor": 8})]], set()),
    "block device": ([[("sda", BLOCK, {"devmajor": 8})]], set()),
    "device that hides a file": ([[file("a")], [("a", DEVICE, {})]], set()),
    "unknown type": ([[("a", b"Z", {})]], set()),
    "set-id bits": ([[file("a", mode=0o6755), folder("b", mode=0o7777)]], {"a", "b"}),
    "modes without rights": ([[folder("a", mode=0), file("a/b", mode=0)]], {"a", "a/b"}),
    "entry twice": ([[file("a", b"1"), file("a", b"22"), folder("a"), file("a", b"333")]], {"a"}),
    "folder, file, folder": (
        [[file("a/b/c")], [folder("a/b"), file("a/b"), folder("a/b"), file("a/b/d")]],
        {"a", "a/b", "a/b/c (deleted)", "a/b/d"},
    ),
    "whiteout of what is not there": ([[file(".wh.a")]], set()),
    "overlay's own attributes": (
        [[file("a", pax_headers={"SCHILY.xattr.user.overlay.redirect": "/etc"})]],
        {"a"},
    ),
    "capabilities": ([[file("a", pax_headers={"SCHILY.xattr.security.capability": "x"})]], {"a"}),
    "time of the far future": ([[file("a", mtime=1 << 60)]], {"a"}),
    "bytes that are no UTF-8": ([[file("a\udcff")]], {"a\udcff"}),
    "size by PAX up to the end": ([pax({"size": "512"}, block("x"))], {"x"}),
    "path by PAX out of the root": ([pax({"path": "../../evil"}, block("x"))], {"evil"}),
    "path by PAX for all entries": (
        [pax({"path": "/../tmp/evil"}, block("x"), kind=tarfile.XGLTYPE)],
        {"tmp", "tmp/evil"},
    ),
    "long name by GNU out of the root": (
        [gnu(tarfile.GNUTYPE_LONGNAME, b"../../evil", block("x"))],
        {"evil"},
    ),
    "owner and times that are no numbers": (
        [pax({"uid": "x", "gid": "1e400", "mtime": "nan", "atime": "inf"}, block("a"))],
        {"a"},
    ),
    "owner of a huge number": ([pax({"uid": str(1 << 70)}, block("a"))], {"a"}),
    "whiteout of a link": (
        [[file("real/x"), link("a", "real")], [file(".wh.a")]],
        {"a (deleted)"},
    ),
    "whiteout of a link out of the root": (
        [[link("a", "/etc/hosts")], [file(".wh.a")]],
        {"a (deleted)"},
    ),
    "whiteout through a link out of the root": (
        [[link("a", "/../../etc"), file("etc/x")], [file("a/.wh.x")]],
        {"etc", "etc/x (deleted)"},
    ),
    "whiteout that is a folder, with files": ([[folder(".wh.a"), file("b")]], {"b"}),
    "opaque root": (
        [[file("a"), file("b/c")], [file(".wh..wh..opq")]],
        {"a (deleted)", "b (deleted)"},
    ),
    "opaque folder that is a link": (
        [[file("real/x"), link("a", "real")], [file("a/.wh..wh..opq")]],
        {"real", "real/x (deleted)"},
    ),
    "names that differ by case": (
        [[file("a"), file("A"), folder("B"), link("b", "/etc")]],
        {"a", "A", "B", "b"},
    ),
    "names of a terminal": ([[file("a\x1b[2J\r\nb")]], {"a\x1b[2J\r\nb"}),
    "attributes that are huge or many": (
        [
            [
                file("a", pax_headers={"SCHILY.xattr.user.x": "v" * 500_000}),
                file("b", pax_headers={f"SCHILY.xattr.user.x{n}": "v" * 60 for n in range(3000)}),
                file("c", pax_headers={"SCHILY.xattr.user." + "n" * 300: "v"}),
                file("d", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"}),
                file("e", pax_headers={"LIBARCHIVE.xattr.security.selinux": "eA=="}),
            ]
        ],
        {"a", "b", "c", "d", "e"},
    ),
    "folder that a link replaces, and back": (
        [[file("a/x")], [link("a", "/etc"), folder("a"), link("a", "/"), file("a/evil")]],
        {"a", "evil"},
    ),
    "socket type of old tars": ([[("a", b"\0", {}), ("c", tarfile.CONTTYPE, {})]], {"a", "c"}),
}


@pytest.fixture
def outside(cache):
    """What lies beside the store, and in places that layers name."""

    def seen():
        here = cache.parent
        names = {str(path) for path in here.rglob("*") if cache not in path.parents}
        return names, os.path.lexists("/tmp/evil"), os.path.lexists("/etc/evil")

    return seen


def tree(path) -> set[str]:
    """The paths in a folder; those of deleted files are marked."""
    names = set()
    for at, folders, files in os.walk(path):
        for name in (*folders, *files):
            info = os.lstat(f"{at}/{name}")
            mark = " (deleted)" if stat.S_ISCHR(info.st_mode) else ""
            names.add(os.path.relpath(f"{at}/{name}", path) + mark)
            assert not info.st_mode & 0o6000
            assert not stat.S_ISBLK(info.st_mode)
            assert info.st_rdev == 0
            attributes = os.listxattr(f"{at}/{name}", follow_symlinks=False)
            assert not [key for key in attributes if "overlay" in key or "security" in key]
    return names


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_layer_is_refused_and_leaves_nothing(cache, layout, outside, name):
    layers, words = REFUSED[name]
    reference = layout.image(*layers)
    before = outside()
    with pytest.raises(ImageError) as caught:
        get_image(reference)
    assert words in str(caught.value)
    assert outside() == before
    assert not os.listdir(cache / "images" / "building")
    assert not os.listdir(cache / "images" / "images")
    assert len(os.listdir(cache / "images" / "layers")) == len(layers) - 1
    store.collect()
    assert not os.listdir(cache / "images" / "layers")
    assert not os.listdir(cache / "images" / "blobs")


@pytest.mark.parametrize("name", KEPT)
def test_an_odd_layer_lands_inside_its_root(cache, layout, outside, name):
    layers, names = KEPT[name]
    reference = layout.image(*layers)
    before = outside()
    held = get_image(reference)
    assert tree(held.image.layers[-1]) == names
    assert outside() == before
    assert not os.listdir(cache / "images" / "building")
    held.close()
    assert store.remove(held.image.digest)
    store.collect()
    assert not os.listdir(cache / "images" / "layers")


def test_a_bomb_is_refused_by_what_it_unpacks_to(cache, layout, monkeypatch):
    monkeypatch.setenv("ATOLL_IMAGES_MB", "30")
    reference = layout.image([file(str(number), bytes(10 << 20)) for number in range(5)])
    with pytest.raises(ImageError, match="unpacks to more than"):
        get_image(reference)
    assert not os.listdir(cache / "images" / "building")


def _zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").ZstdCompressor(level=3).compress(data))


def _zstd_window(_tar: bytes) -> bytes:
    """A frame that asks for a window of 3 TiB, which a decoder would have to hold in memory."""
    return b"\x28\xb5\x2f\xfd" + b"\x00" + b"\xff" + b"\x01\x00\x00" + bytes(64)


def _gzip_tail(tar: bytes) -> bytes:
    return gzip.compress(tar) + b"no gzip at all"


def _gzip_cut(tar: bytes) -> bytes:
    return gzip.compress(tar)[:-20]


@pytest.mark.parametrize("pack", [_zstd, _zstd_window, _gzip_tail, _gzip_cut])
def test_a_layer_that_is_packed_with_malice_is_refused(cache, layout, outside, monkeypatch, pack):
    monkeypatch.setenv("ATOLL_IMAGES_MB", "30")
    reference = layout.image([file("bomb", bytes(64 << 20))], pack=pack)
    before = outside()
    with pytest.raises(ImageError, match="a layer"):
        get_image(reference)
    assert outside() == before
    assert not os.listdir(cache / "images" / "building")


def test_too_many_entries_are_refused(cache, layout, monkeypatch):
    monkeypatch.setattr(unpack, "MOST_ENTRIES", 100)
    reference = layout.image([file(str(number)) for number in range(101)])
    with pytest.raises(ImageError, match="more than 100 entries"):
        get_image(reference)
    assert not os.listdir(cache / "images" / "building")


@pytest.mark.usefixtures("cache")
def test_a_layer_of_another_digest_is_refused(layout):
    reference = layout.image([file("a")], pack=lambda tar: gzip.compress(tar_of([file("b")])))
    with pytest.raises(ImageError, match="not the one that its configuration names"):
        get_image(reference)


@pytest.mark.usefixtures("cache")
def test_the_padding_at_the_end_may_be_missing(layout):
    """As in layers that `umoci insert` writes."""
    whole = tar_of([file("a", b"1234")])
    held = get_image(layout.image(whole[: 512 + 4]))
    assert (held.image.layers[0] / "a").read_bytes() == b"1234"
    held.close()


@pytest.mark.usefixtures("cache")
def test_gzip_in_several_members_is_read(layout):
    def pack(tar):
        half = len(tar) // 2
        return gzip.compress(tar[:half]) + gzip.compress(tar[half:]) + bytes(100)

    data = os.urandom(3 << 20) + bytes(3 << 20)
    held = get_image(layout.image([file("a", data)], pack=pack))
    assert (held.image.layers[0] / "a").read_bytes() == data
    held.close()


@pytest.mark.usefixtures("cache")
def test_a_damaged_blob_is_refused(layout):
    reference = layout.image([file("a")])
    for path in (layout.path / "blobs" / "sha256").iterdir():
        if path.read_bytes()[:2] == b"\x1f\x8b":
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(ImageError, match="is damaged"):
        get_image(reference)


@pytest.mark.usefixtures("cache")
def test_owners_and_modes_are_kept_beside_the_layer(layout):
    entries = [
        file("shadow", mode=0o640, gid=42),
        file("su", mode=0o4755),
        folder("home", uid=1000, gid=1000),
        file("plain", mode=0o644),
        file("closed", mode=0),
    ]
    held = get_image(layout.image(entries, [file("home/new", mode=0o644)]))
    lower, upper = held.image.owners()
    assert {path: (o.uid, o.gid, o.mode) for path, o in lower.items()} == {
        "shadow": (0, 42, 0o640),
        "su": (0, 0, 0o4755),
        "home": (1000, 1000, 0o755),
        "closed": (0, 0, 0),
    }
    assert [(o.uid, o.gid, o.mode) for o in upper.values()] == [(1000, 1000, 0o755)]
    assert stat.S_IMODE((held.image.layers[0] / "su").stat().st_mode) == 0o755
    held.close()


LAYERS = (
    [
        *(folder(name) for name in ("etc", "usr", "usr/lib", "opt", "opt/a", "opt/a/b", "var")),
        *(file(name, name.encode()) for name in ("etc/x", "etc/y", "usr/lib/z", "opt/a/b/c")),
        file("opt/a/d"),
        file("opt/e"),
        link("lib", "usr/lib"),
        file("var/hardly", b"same"),
    ],
    [file("lib/new"), file("etc/.wh.x"), file("opt/a/.wh..wh..opq"), file("opt/a/new")],
    [hard("var/copy", "var/hardly"), file("opt/.wh.a"), file("opt/a/b/again"), link("etc/y", "z")],
    [file("lib/.wh.new"), file(".wh.etc"), file("etc/other"), file("opt/e/in", b"")][:3],
)


@pytest.mark.usefixtures("cache")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount an overlay here")
def test_an_overlay_shows_what_umoci_unpacks(layout, tmp_path):
    held = get_image(layout.image(*LAYERS))
    merged, flat = tmp_path / "merged", tmp_path / "flat"
    merged.mkdir()
    lower = ":".join(str(layer) for layer in reversed(held.image.layers))
    options = f"lowerdir={lower},userxattr"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
    try:
        shown = {path: _content(merged / path) for path in tree(merged)}
    finally:
        subprocess.run(["umount", merged], check=True)
    if subprocess.run(["which", "umoci"], capture_output=True, check=False).returncode:
        pytest.skip("umoci is not installed: apt-get install umoci")
    entry = layout.path / "index.json"
    entry.write_text(
        entry.read_text().replace(
            '"size"', '"annotations": {"org.opencontainers.image.ref.name": "t"}, "size"'
        )
    )
    command = ["umoci", "unpack", "--image", f"{layout.path}:t", flat]
    subprocess.run(command, check=True, capture_output=True)
    assert shown == {path: _content(flat / "rootfs" / path) for path in tree(flat / "rootfs")}
    held.close()


def _content(path) -> object:
    if path.is_symlink():
        return os.readlink(path)
    return sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()


def test_the_table_has_eighty_layers():
    assert len(REFUSED) + len(KEPT) >= 80

"""Hostile manifests, indexes and archives: refused in words, with nothing outside and nothing left."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import resource
import tarfile

import pytest
from made_images import file, tar_of

from atoll.errors import ImageError
from atoll.images import get_image, store

OCI = "application/vnd.oci.image"
MIB = 1 << 20


@pytest.fixture
def refused(cache):
    """Check that a reference is refused in words, and leaves nothing in the store."""

    def check(reference: str, words: str = ".") -> None:
        with pytest.raises(ImageError, match=words):
            get_image(reference)
        store.collect()
        assert [path for path in (cache / "images").glob("*/*") if path.suffix != ".lock"] == []

    return check


def _entry(**fields):
    return {"mediaType": f"{OCI}.layer.v1.tar", "digest": "sha256:" + "0" * 64, "size": 1, **fields}


MANIFESTS = {
    "no digest": ({"layers": [_entry(digest="x")]}, "without a sha256 digest"),
    "digest that is a path": (
        {"layers": [_entry(digest="sha256:../../../../etc/passwd")]},
        "without a sha256 digest",
    ),
    "digest of another kind": ({"layers": [_entry(digest="md5:00")]}, "without a sha256 digest"),
    "negative size": ({"layers": [_entry(size=-1)]}, "without a sha256 digest and a size"),
    "size that is a text": ({"layers": [_entry(size="1")]}, "without a sha256 digest and a size"),
    "exabytes": ({"layers": [_entry(size=1 << 60)]}, "more than all images may"),
    "no layers at all": ({"layers": None}, "malformed"),
    "layers that are no objects": ({"layers": ["x"]}, "malformed"),
    "thousand layers": ({"layers": [_entry()] * 1000}, "more than 127"),
    "more layers than the configuration": ({"layers": [_entry(), _entry()]}, "differ"),
    "no configuration": ({"config": None}, "without a sha256 digest"),
    "no image": ({"config": {**_entry(), "mediaType": "text/x"}}, "not a container image"),
    "configuration of a gigabyte": (
        {"config": {**_entry(size=1 << 30), "mediaType": f"{OCI}.config.v1+json"}},
        "not a container image",
    ),
    "version of long ago": ({"schemaVersion": 1}, "has version 1"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_hostile_manifest_is_refused(layout, refused, name):
    fields, words = MANIFESTS[name]
    refused(layout.image([file("a")], manifest=fields), words)


def _config(layout, text: bytes) -> dict:
    return {"config": layout.blob(text, f"{OCI}.config.v1+json")}


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"config": {"Env": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
        b'{"config": 3}',
        b'{"config": {"Env": [1]}}',
        b'{"config": {"Env": ["A=\\u0000"]}}',
        b'{"config": {"User": {}}}',
        b'{"rootfs": {"diff_ids": ["sha256:../x"]}}',
        b'{"rootfs": {"diff_ids": [' + b'"x",' * 100_000 + b'"x"]}}',
        b'{"x": ' + b"9" * 100_000 + b"}",
        b"\xff\xfe\x00",
        b"",
    ],
    ids=range(11),
)
def test_a_hostile_configuration_is_refused(layout, refused, text):
    refused(
        layout.image([file("a")], manifest=_config(layout, text)), "configuration|malformed|differ"
    )


INDEXES = {
    "deep JSON": (b"[" * 200_000, "malformed|not JSON"),
    "five megabytes": (b'{"manifests": [' + b" " * (5 * MIB) + b"]}", "has more than"),
    "no list": (b'{"schemaVersion": 2, "manifests": 3}', "malformed"),
    "no entry": (b'{"schemaVersion": 2, "manifests": []}', "no image for"),
    "not JSON": (b"\x00\x01", "not JSON|malformed"),
    "numbers of 100,000 digits": (b'{"a": ' + b"9" * 100_000 + b"}", "not JSON|malformed"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_hostile_index_is_refused(layout, refused, name):
    text, words = INDEXES[name]
    layout.image([file("a")])
    (layout.path / "index.json").write_bytes(text)
    refused(f"oci:{layout.path}", words)


def test_indexes_that_name_indexes_end(layout, refused):
    layout.image([file("a")])
    entry = json.loads((layout.path / "index.json").read_text())["manifests"][0]
    for _ in range(6):
        text = json.dumps(
            {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [entry]}
        )
        entry = layout.blob(text.encode(), f"{OCI}.index.v1+json")
    layout.index([entry])
    refused(f"oci:{layout.path}", "too deeply")


@pytest.mark.parametrize("place", ["index.json", "blobs/sha256"])
def test_links_pipes_and_devices_in_a_layout_are_not_read_for_ever(layout, refused, place):
    layout.image([file("a")])
    paths = (
        [layout.path / place] if place == "index.json" else list((layout.path / place).iterdir())
    )
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        for path in paths:
            path.unlink()
            make(path)
        refused(f"oci:{layout.path}", "is not a file")


def _archive(path, members, pack=lambda data: data) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                tar.addfile(member)
    path.write_bytes(pack(raw.getvalue()))


def _docker(config: str = "c.json", layers: list | None = None) -> tuple[str, bytes]:
    listed = [
        {"Config": config, "RepoTags": ["a:1"], "Layers": ["l.tar"] if layers is None else layers}
    ]
    return "manifest.json", json.dumps(listed).encode()


LAYER = tar_of([file("a")])
CONFIG = json.dumps(
    {"rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(LAYER).hexdigest()}"]}}
).encode()
SYM, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE
DOCKER = {
    "layer out of the archive": [_docker(layers=["../../../etc/passwd"]), ("c.json", CONFIG)],
    "layer by an absolute path": [_docker(layers=["/etc/passwd"]), ("c.json", CONFIG)],
    "configuration by a link": [_docker(), ("c.json", (SYM, "/etc/passwd")), ("l.tar", LAYER)],
    "layer by a link out": [_docker(), ("c.json", CONFIG), ("l.tar", (SYM, "/etc/passwd"))],
    "layer by a hard link": [_docker(), ("c.json", CONFIG), ("l.tar", (HARD, "/etc/passwd"))],
    "links in a cycle": [
        _docker(),
        ("c.json", CONFIG),
        ("l.tar", (SYM, "m")),
        ("m", (SYM, "l.tar")),
    ],
    "manifest by a link": [("manifest.json", (SYM, "/etc/passwd"))],
    "manifest of another kind": [("manifest.json", b'{"a": 1}')],
    "manifest that is deep": [("manifest.json", b"[" * 100_000)],
    "thousand layers": [_docker(layers=["l.tar"] * 1000), ("c.json", CONFIG), ("l.tar", LAYER)],
    "nothing": [],
}


@pytest.mark.parametrize("name", DOCKER)
def test_a_hostile_docker_archive_is_refused(tmp_path, refused, name):
    _archive(tmp_path / "a.tar", DOCKER[name])
    refused(f"docker-archive:{tmp_path}/a.tar")


OCI_ARCHIVES = {
    "files out of the archive": ([("../../index.json", b"{}"), ("/etc/evil", b"x")], "index.json"),
    "file twice": ([("index.json", b"{}"), ("./index.json", b"{}")], "has a file twice"),
    "links for files": ([("index.json", (SYM, "/etc/passwd"))], "index.json"),
    "too many files": ([(str(number), b"") for number in range(10_001)], "more than 10,000 files"),
}


@pytest.mark.parametrize("name", OCI_ARCHIVES)
def test_a_hostile_oci_archive_is_refused(tmp_path, refused, name):
    members, words = OCI_ARCHIVES[name]
    _archive(tmp_path / "a.tar", members)
    refused(f"oci-archive:{tmp_path}/a.tar", words)


def _huge_header() -> bytes:
    """A header of 2 GiB, which the standard library reads into memory; 2 MiB as gzip."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 2 << 30
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as made:
        made.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(256):
            made.write(bytes(MIB))
    return packed.getvalue()


def _nested_headers() -> bytes:
    header = tarfile.TarInfo("pax")
    record = b"13 comment=x\n"
    header.type, header.size = tarfile.XHDTYPE, len(record)
    return (header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")) * 5000 + bytes(1024)


BROKEN = {
    "cut short": tar_of([file("index.json", b"x" * 5000)])[:2000],
    "gzip that is cut": gzip.compress(tar_of([file("x", os.urandom(50_000))]))[:20_000],
    "headers in headers": _nested_headers(),
    "no tar": b"no tar at all" * 100,
    "empty": b"",
}


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_archive_is_refused_in_words(tmp_path, refused, name, kind):
    (tmp_path / "a.tar").write_bytes(BROKEN[name])
    refused(f"{kind}:{tmp_path}/a.tar")


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_a_header_of_gigabytes_in_an_archive_is_not_read_into_memory(tmp_path, refused, kind):
    (tmp_path / "a.tar").write_bytes(_huge_header())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(f"{kind}:{tmp_path}/a.tar", "a header in it has more than")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_an_archive_that_is_a_pipe_is_refused(tmp_path, refused, kind):
    os.mkfifo(tmp_path / "a.tar")
    refused(f"{kind}:{tmp_path}/a.tar", "is not a file")

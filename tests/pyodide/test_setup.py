"""What the backend needs: Deno, the package, the memory image, wheels; and what is said without."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys

import pytest

import atoll
from atoll import extras
from atoll.backends.pyodide import PyodideSandbox, deno, distribution, image, wheels


def availability(**options):
    config = atoll.SandboxConfig(backend="pyodide", **options)
    return asyncio.run(PyodideSandbox.availability(config))


def test_the_backend_says_what_stands_around_it():
    found = availability()
    assert (found.usable, found.isolation) == (True, atoll.Isolation.VIRTUAL)
    assert "jail" in found.details["around deno"]
    assert distribution.VERSION in found.details["pyodide"]
    assert found.limits["time"] == "interrupt, then kill"
    assert availability(use_worker=False).limits["time"] == "kill"


def test_a_host_with_another_c_library_is_told_so(monkeypatch):
    monkeypatch.setattr(deno, "_of_wheel", lambda: None)
    monkeypatch.setattr(deno.shutil, "which", lambda _: None)
    monkeypatch.setattr(deno.platform, "libc_ver", lambda: ("", ""))
    found = availability()
    assert not found.usable
    assert "musl" in found.reason
    assert "glibc image" in found.hint


def test_without_deno_the_hint_says_what_to_type(monkeypatch):
    monkeypatch.setattr(deno, "_of_wheel", lambda: None)
    monkeypatch.setattr(deno.shutil, "which", lambda _: None)
    found = availability()
    assert (found.usable, found.hint) == (False, extras.hint("pyodide"))
    with pytest.raises(atoll.BackendUnavailableError, match="pip install 'deno"):
        atoll.create_sandbox(backend="pyodide")


def test_a_deno_that_is_none_is_refused(tmp_path, monkeypatch):
    fake = tmp_path / "deno"
    fake.write_text("#!/bin/sh\necho other 1.0\n")
    fake.chmod(0o755)
    monkeypatch.setattr(deno, "_of_wheel", lambda: str(fake))
    with pytest.raises(atoll.BackendUnavailableError, match="says that it is 'other'"):
        deno.find()


def test_the_package_is_kept_in_a_private_folder():
    folder = distribution.setup().folder
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    distribution.check(folder)


def test_a_package_with_other_bytes_is_not_kept(tmp_path, monkeypatch):
    good = distribution.setup().folder
    forged = tmp_path / "forged"
    forged.mkdir()
    for name in distribution.FILES:
        (forged / name).write_bytes((good / name).read_bytes())
    with (forged / "pyodide.asm.wasm").open("r+b") as file:
        file.write(b"x")
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(distribution, "_fetch_package", lambda _: forged)
    with pytest.raises(atoll.BackendUnavailableError, match=r"pyodide\.asm\.wasm is not that of"):
        distribution.setup()
    assert distribution.installed() is None
    assert [path.name for path in distribution.private_folder().iterdir()] == ["setup.lock"]


def test_the_cache_of_another_user_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    monkeypatch.setattr(distribution.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(atoll.BackendUnavailableError, match="belongs to another user"):
        distribution.private_folder()


def test_a_cache_that_cannot_be_is_a_reason_and_no_traceback(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "file"))
    found = availability()
    assert not found.usable
    assert "the folder for Pyodide cannot be made" in found.reason
    assert found.hint == "Set ATOLL_CACHE to a folder of yours."


def test_who_keeps_the_package_second_finds_the_first_ones(tmp_path, monkeypatch):
    source = distribution.setup().folder
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    first = distribution.keep(source, "same", distribution.check)
    assert distribution.keep(source, "same", distribution.check) == first
    assert [path.name for path in distribution.private_folder().iterdir()] == ["same"]


def test_images_of_others_stay_unless_nobody_has_used_them(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    used, unused = (distribution.private_folder() / f"image-1-{name}" for name in ("a", "b"))
    for path in (used, unused):
        path.write_text("")
    os.utime(unused, (1, 1))
    image._forget_old(distribution.private_folder())
    assert (used.exists(), unused.exists()) == (True, False)


@pytest.mark.long
def test_two_processes_build_the_image_once(tmp_path, monkeypatch):
    pyodide = distribution.setup()
    code = (
        "from atoll.backends.pyodide import deno, distribution, image\n"
        "from pathlib import Path\n"
        f"pyodide = distribution.Distribution(Path({str(pyodide.folder)!r}), 'test')\n"
        "real, built = image._build, []\n"
        "image._build = lambda *args: (built.append(1), real(*args))\n"
        "path = image.find(pyodide, deno.find())\n"
        "print(len(built), path.stat().st_size)\n"
    )
    env = {**os.environ, "ATOLL_CACHE": str(tmp_path)}
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [one.communicate(timeout=100)[0].split() for one in running]
    assert sorted(count for count, _ in said) == ["0", "1"]
    assert said[0][1] == said[1][1]
    left = {path.name.partition("-")[0] for path in (tmp_path / "pyodide").iterdir()}
    assert left == {"image", "image.lock"}


def test_another_guest_package_means_another_image(monkeypatch):
    pyodide, runner = distribution.setup(), deno.find()
    first = image.find(pyodide, runner)
    assert image.find(pyodide, runner) == first
    built = []
    monkeypatch.setattr(image, "_WARM_UP", image._WARM_UP + "\n")
    monkeypatch.setattr(image, "_build", lambda _pyodide, _runner, path: built.append(path))
    assert image.find(pyodide, runner) != first
    assert len(built) == 1


def test_an_image_that_cannot_be_built_is_said_so(tmp_path, monkeypatch):
    for name in distribution.FILES:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(atoll.BackendUnavailableError, match="did not start to be imaged"):
        image.find(distribution.Distribution(tmp_path, "broken"), deno.find())


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache with Pyodide in it, and no wheels but the test's own."""
    folder = distribution.setup().folder
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    distribution.keep(folder, distribution.VERSION, distribution.check)


@pytest.mark.long
def test_a_guest_is_replaced_though_the_image_has_gone(tmp_path, monkeypatch):
    pyodide, ready = distribution.setup(), image.find(distribution.setup(), deno.find())
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    distribution.keep(pyodide.folder, distribution.VERSION, distribution.check)
    shutil.copy(ready, distribution.private_folder())
    with atoll.create_sandbox(backend="pyodide") as box:
        for found in distribution.private_folder().glob("image-*"):
            if found.is_file() and found.suffix != ".lock":
                found.unlink()
        for _ in range(2):  # the parked process is still of the old one
            assert box.execute("import os; os._exit(1)").state_lost
        assert box.execute("6 * 7").value == 42


@pytest.mark.long
def test_a_wheel_from_pypi_is_imported_by_guests(own_cache):
    new = wheels.install(["msgspec"])
    assert [name for name in new if name.startswith("msgspec-") and wheels.PLATFORM in name]
    assert wheels.install(["msgspec"]) == ()
    with atoll.create_sandbox(backend="pyodide") as box:
        result = box.execute("import msgspec; msgspec.json.encode({'a': [1, 2]})")
        assert result.value == b'{"a":[1,2]}', result.error
        assert result.files == ()
        assert box.execute("import os; os.listdir('/app'), msgspec.__file__[:5]").value == (
            [],
            "/lib/",
        )


@pytest.mark.parametrize("name", ["--index-url=x", "no-such-package-of-atolls-tests"])
def test_what_is_no_package_for_pyodide_is_refused(own_cache, name):
    words = r"is not a package|no wheel for Python 3\.\d+ in Pyodide"
    with pytest.raises((atoll.ConfigError, atoll.PackageError), match=words):
        wheels.install([name])
    assert wheels.installed() == ()

"""Packages for guests: from PyPI or a wheel, pure, compiled by the guest's own Python."""

from __future__ import annotations

import zipfile

import pytest

import atoll
from atoll import run_untrusted_python
from atoll.backends.wasm import build, packages


def wheel(folder, name, version="1.0", tag="py3-none-any", source="answer = 42\n"):
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}/__init__.py", source)
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        file.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        file.writestr(f"{info}/RECORD", "")
    return str(path)


@pytest.mark.long
@pytest.mark.spec("R1.3")
def test_urllib3_is_installed_and_imported(own_cache):
    assert [name.partition("-")[0] for name in packages.install(build.find(), ["urllib3"])] == [
        "urllib3"
    ]
    result = run_untrusted_python(
        "import urllib3; print('OK', urllib3.__file__, urllib3.__cached__)"
    )
    assert result.success, result.stderr
    assert result.stdout.startswith("OK /app/site-packages/urllib3/__init__.py /app/site-packages/")
    assert result.files == ()
    refused = run_untrusted_python("import sys, urllib3", inject_setup=False)
    assert refused.error_type == "ModuleNotFoundError"


@pytest.mark.spec("R1.3")
def test_without_setup_nothing_is_added_to_the_path():
    plain = run_untrusted_python("import sys; sys.path", inject_setup=False).value
    assert run_untrusted_python("import sys; sys.path").value == [*plain, "/app/site-packages"]


@pytest.mark.spec("R1.3")
def test_packages_of_a_workspace_stand_above_the_installed(tmp_path):
    (tmp_path / "site-packages" / "mine").mkdir(parents=True)
    (tmp_path / "site-packages" / "mine" / "__init__.py").write_text("here = True")
    assert run_untrusted_python("import mine; mine.here", workspace=tmp_path).value is True


def test_what_is_compiled_is_used_and_cannot_be_changed_by_guests(own_cache, tmp_path):
    packages.install(build.find(), [wheel(tmp_path, "thing")])
    assert packages.installed(build.find()) == ("thing-1.0",)
    assert list((own_cache).glob("site-packages-*/thing/__pycache__/*.pyc"))
    result = run_untrusted_python(
        "import thing\nfor name in ('__init__.py', 'new.py'):\n"
        "    try: open('/app/site-packages/thing/' + name, 'w')\n"
        "    except OSError as exc: print(type(exc).__name__)\n"
        "thing.answer"
    )
    assert (result.value, result.stdout) == (42, "PermissionError\nPermissionError\n")


@pytest.mark.long
def test_a_newer_version_takes_the_place_of_the_old(own_cache, tmp_path):
    built = build.find()
    packages.install(built, [wheel(tmp_path, "thing")])
    new = packages.install(built, [wheel(tmp_path, "thing", "2.0", source="answer = 43\n")])
    assert new == ("thing-2.0",)
    assert packages.installed(built) == ("thing-2.0",)
    assert run_untrusted_python("import thing; thing.answer").value == 43


@pytest.mark.parametrize("name", ["--index-url=x", "numpy", "no-such-package-at-all-1234567"])
def test_what_cannot_be_installed_is_said(own_cache, name):
    with pytest.raises((atoll.ConfigError, atoll.PackageError)):
        packages.install(build.find(), [name])
    assert packages.installed(build.find()) == ()

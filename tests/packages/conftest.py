"""An index of tiny wheels in a folder, a cache of the tests' own: nothing leaves this machine."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from atoll.launch import interpreter
from atoll.packages import download, for_interpreter

LINK = 0o120777 << 16


class Index:
    """A folder of wheels and sources, made as a test needs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wheel(self, name: str, version: str = "1.0", needs: tuple[str, ...] = (), **files) -> Path:
        """Write a wheel; `files` are contents by path, `init` the package's own code."""
        facts = f"{name}-{version}.dist-info"
        needed = "".join(f"Requires-Dist: {one}\n" for one in needs)
        members = {
            f"{name}/__init__.py": files.pop("init", f"version = {version!r}\n"),
            **files.pop("more", {}),
            f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
            f"{facts}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        members[f"{facts}/RECORD"] = "".join(f"{path},,\n" for path in members)
        path = self.folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for member, text in members.items():
                info = zipfile.ZipInfo(member)
                info.external_attr = LINK if isinstance(text, tuple) else 0
                archive.writestr(info, text[0] if isinstance(text, tuple) else text)
        return path

    def source(self, name: str, version: str = "1.0", backend: str = "") -> Path:
        """Write a source archive whose build backend is `backend`, in the archive itself."""
        files = {
            "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
            "backend.py": backend + BACKEND.format(name=name, version=version),
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        }
        path = self.folder / f"{name}-{version}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for member, text in files.items():
                info = tarfile.TarInfo(f"{name}-{version}/{member}")
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
        return path


BACKEND = """
import os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    facts = "{name}-{version}.dist-info"
    name = "{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as file:
        file.writestr("{name}/__init__.py", "built = " + repr(globals().get("found", "")))
        file.writestr(facts + "/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        file.writestr(facts + "/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr(facts + "/RECORD", "")
    return name
"""


@pytest.fixture(autouse=True)
def settings(monkeypatch, index, request):
    """pip asks the folder alone, whatever the settings of this machine are."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.folder))


@pytest.fixture
def index(tmp_path) -> Index:
    """An empty index."""
    folder = tmp_path / "index"
    folder.mkdir()
    return Index(folder)


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty store of environments."""
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "environments"


@pytest.fixture
def without_pip(monkeypatch, index):
    """Take all wheels of the index: for tests of what comes after the download, to save a second."""

    def wheels(_asked, _target, scratch, _progress, *, links):
        (scratch / "wheels").mkdir()
        return [shutil.copy(one, scratch / "wheels") for one in index.folder.glob("*.whl")]

    monkeypatch.setattr(
        download, "wheels", lambda *args, **named: list(map(Path, wheels(*args, **named)))
    )


@pytest.fixture
def target():
    """The interpreter that runs the tests."""
    return for_interpreter(interpreter.resolve(None))

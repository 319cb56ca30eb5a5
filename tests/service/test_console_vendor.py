"""The tool that fetches the console's editor: exact versions, checked hashes, no harm without npm."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "@a/one": "import { two } from 'two';\nexport { two } from \"two\";\nconst text = 'from x';\n",
    "two": "export const two = 2;\n",
}


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """The tool with two small packages, whose npm puts tarballs where they are asked for."""
    spec = importlib.util.spec_from_file_location(
        "vendor_console", ROOT / "tools/vendor_console.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    tarballs = {name: _tarball(source) for name, source in SOURCES.items()}
    listed = {
        name: {"version": "1.0.0", "module": "index.js", "integrity": _integrity(data)}
        for name, data in tarballs.items()
    }
    (tmp_path / "packages.json").write_text(json.dumps(listed))
    monkeypatch.setattr(module, "PACKAGES", tmp_path / "packages.json")
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module.shutil, "which", lambda _name: "npm")
    module.tarballs, module.asked = tarballs, []

    def npm(command, **_options):
        folder = Path(command[command.index("--pack-destination") + 1])
        wanted = [one.rpartition("@")[0] for one in command if one.endswith("@1.0.0")]
        module.asked += wanted
        for name in wanted:
            (folder / module.file_name(name)).write_bytes(tarballs[name])
        told = [{"name": name, "filename": module.file_name(name)} for name in wanted]
        return subprocess.CompletedProcess(command, 0, json.dumps(told).encode())

    monkeypatch.setattr(module.subprocess, "run", npm)
    return module


def test_modules_import_each_other_by_relative_paths(tool, tmp_path):
    tool.vendor(tmp_path / "vendor")
    found = (tmp_path / "vendor/a-one.js").read_text()
    assert (
        found
        == "import { two } from './two.js';\nexport { two } from \"./two.js\";\nconst text = 'from x';\n"
    )
    assert "two 1.0.0\n\nfree" in (tmp_path / "vendor/licences.txt").read_text()


def test_a_second_build_asks_npm_for_nothing(tool, tmp_path):
    tool.vendor(tmp_path / "vendor")
    assert tool.vendor(tmp_path / "vendor") == "the console's editor and terminal are there already"
    tool.vendor(tmp_path / "other")  # out of the cache
    assert sorted(tool.asked) == ["@a/one", "two"]


@pytest.mark.parametrize("where", ["npm", "cache"])
def test_a_package_with_another_hash_is_refused(tool, tmp_path, where):
    if where == "npm":
        tool.tarballs["two"] += b"x"
    else:
        tool.vendor(tmp_path / "first")
        for kept in (tmp_path / "cache/npm").glob("*.tgz"):
            kept.write_bytes(kept.read_bytes() + b"x")
    with pytest.raises(tool.VendorError, match=r"1\.0\.0 is not what it was"):
        tool.vendor(tmp_path / "vendor")
    assert not (tmp_path / "vendor").exists()


def test_without_npm_the_build_goes_on_and_says_so(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool.shutil, "which", lambda _name: None)
    assert tool.main() == 1
    assert "a text area as its editor, and no terminal: there is no npm" in capsys.readouterr().err


def test_what_is_fetched_is_pinned_and_not_checked_in():
    listed = json.loads((ROOT / "tools/console_packages.json").read_text())
    assert all(one["integrity"].startswith("sha512-") for one in listed.values())
    assert not any(one["version"].startswith(("^", "~", "*")) for one in listed.values())
    assert "src/atoll/service/console/static/vendor/\n" in (ROOT / ".gitignore").read_text()


def _tarball(source):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in (("index.js", source), ("LICENSE", "free")):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def _integrity(data):
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()

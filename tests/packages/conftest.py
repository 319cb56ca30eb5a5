"""An index of tiny wheels in a folder, a cache of the tests' own: nothing leaves this machine."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import os
import shutil
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from atoll.egress.authority import Authority
from atoll.launch import interpreter
from atoll.packages import download
from atoll.packages.target import for_interpreter

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


class IndexPages(http.server.BaseHTTPRequestHandler):
    """The pages of PEP 503 over a folder; `refusals` are statuses by path."""

    def do_GET(self):
        self.server.asked.append(self.path)
        folder, path = self.server.folder, self.path.partition("#")[0]
        if path in self.server.refusals:
            return self.send_error(self.server.refusals[path])
        if path.startswith("/files/"):
            return self._give(
                (folder / path.removeprefix("/files/")).read_bytes(), "application/zip"
            )
        name = path.removeprefix("/simple/").strip("/")
        links = [
            f'<a href="/files/{one.name}#sha256={self._digest(one)}">{one.name}</a>'
            for one in sorted(folder.iterdir())
            if one.name.startswith(f"{name}-")
        ]
        return self._give("\n".join(links).encode(), "text/html") if links else self.send_error(404)

    def _digest(self, path):
        wrong = self.server.wrong_hashes
        return "0" * 64 if wrong else hashlib.sha256(path.read_bytes()).hexdigest()

    def _give(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


@contextlib.contextmanager
def serving_index(folder: Path, tls=None):
    """Serve a folder of wheels on loopback."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), IndexPages)
    made.folder, made.asked, made.refusals, made.wrong_hashes = folder, [], {}, False
    if tls is not None:
        made.socket = tls.wrap_socket(made.socket, server_side=True)
    made.place = f"127.0.0.1:{made.server_port}"
    made.url = f"{'https' if tls else 'http'}://{made.place}/simple"
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


@pytest.fixture
def http_index(index, monkeypatch):
    """The same wheels behind HTTP; the host's pip asks there."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    with serving_index(index.folder) as made:
        monkeypatch.setenv("PIP_INDEX_URL", made.url)
        yield made


@pytest.fixture
def https_index(index, tmp_path, monkeypatch):
    """The same wheels behind https, with a certificate that the host trusts."""
    issuer = Authority()
    (tmp_path / "ca.pem").write_text(issuer.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with serving_index(index.folder, issuer.context("127.0.0.1")) as made:
        yield made


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

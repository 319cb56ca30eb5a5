"""Downloads trust the system's certificates: shown with a private authority on loopback."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import ssl
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

import atoll
from atoll.backends.pyodide import deno, distribution, index, wheels
from atoll.egress import certificates
from atoll.packages import download

ROOT = Path(__file__).resolve().parents[2]
TOLD_OTHERWISE = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "DENO_CERT", "SSL_CERT_DIR",
                  "DENO_TLS_CA_STORE", "PIP_FIND_LINKS", "NODE_EXTRA_CA_CERTS")  # fmt: skip


def openssl(*arguments, cwd):
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A certificate authority, and a certificate of its own for this host."""
    folder = tmp_path_factory.mktemp("authority")
    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *key, "-subj", "/CN=Test CA", "-keyout", "ca.key", "-out", "ca.pem",
            "-addext", "basicConstraints=critical,CA:TRUE", cwd=folder)  # fmt: skip
    openssl("req", *key[:3], "-subj", "/CN=localhost", "-keyout", "host.key", "-out", "host.csr",
            cwd=folder)  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "host.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
            "-CAcreateserial", "-extfile", "names", "-out", "host.pem", cwd=folder)  # fmt: skip
    return folder


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = self.server.pages.get(self.path.split("?")[0])
        self.send_response(200 if data is not None else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that does not trust us hangs up."""


@pytest.fixture
def server(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "host.pem", authority / "host.key")
    with Server(("127.0.0.1", 0), Handler) as one:
        one.socket = context.wrap_socket(one.socket, server_side=True)
        one.pages, one.url = {}, f"https://localhost:{one.server_address[1]}"
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield one
        one.shutdown()
        thread.join()


@pytest.fixture(params=["trusted", "unknown"])
def trusted(request, authority, monkeypatch):
    """Whether the system's store, as SSL_CERT_FILE names it, has the authority."""
    for name in TOLD_OTHERWISE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    file = "ca.pem" if request.param == "trusted" else "host.pem"
    if request.param == "unknown":  # another authority
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=Other",
                "-keyout", "other.key", "-out", "other.pem", cwd=authority)  # fmt: skip
        file = "other.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / file))
    return request.param == "trusted"


def test_python_downloads(server, trusted):
    server.pages["/file"] = b"content"
    if trusted:
        assert index._get(f"{server.url}/file") == b"content"
        return
    with pytest.raises(index._FailedError, match="sudo update-ca-certificates"):
        index._get(f"{server.url}/file")


def test_deno_fetches_an_npm_package(server, trusted, tmp_path, monkeypatch):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.url)
    publish(server, dict.fromkeys(distribution.FILES, b"x"))
    if trusted:
        assert (distribution._fetch_package(tmp_path) / "pyodide.mjs").read_bytes() == b"x"
        return
    with pytest.raises(atoll.BackendUnavailableError, match="sudo update-ca-certificates"):
        distribution._fetch_package(tmp_path)


def test_deno_is_the_one_that_is_asked():
    assert certificates.download_environment()["DENO_TLS_CA_STORE"]
    assert deno.find().version


def test_pip_downloads_a_wheel(server, trusted, tmp_path, monkeypatch):
    name = "private_thing-1.0-py3-none-any.whl"
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    server.pages["/simple/private-thing/"] = f'<a href="/{name}">{name}</a>'.encode()
    server.pages[f"/{name}"] = wheel()
    if trusted:
        (found,) = download.by_hand(["private-thing"], wheels.target(), tmp_path)
        assert found.name == name
        return
    with pytest.raises(atoll.PackageError, match="sudo update-ca-certificates"):
        download.by_hand(["private-thing"], wheels.target(), tmp_path)


def test_other_failures_are_told_as_they_are():
    assert certificates.explain("connection refused") == "connection refused"


def test_what_the_user_has_set_is_kept(monkeypatch):
    monkeypatch.setenv("DENO_TLS_CA_STORE", "mozilla")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/mine.pem")
    found = certificates.download_environment()
    assert (found["DENO_TLS_CA_STORE"], found["REQUESTS_CA_BUNDLE"]) == ("mozilla", "/mine.pem")


def test_a_variable_that_is_empty_says_nothing(monkeypatch):
    for name in ("DENO_TLS_CA_STORE", "UV_SYSTEM_CERTS", "OTHER"):
        monkeypatch.setenv(name, "")
    found = certificates.download_environment()
    assert (found["DENO_TLS_CA_STORE"], found["UV_SYSTEM_CERTS"]) == ("system,mozilla", "true")
    assert found["OTHER"] == ""
    made = subprocess.run(
        ["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "DENO_TLS_CA_STORE := system,mozilla\n" in made


def publish(server, files):
    """Serve an npm package of this content."""
    packed = io.BytesIO()
    facts = {"name": "pyodide", "version": distribution.VERSION}
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in {**files, "package.json": json.dumps(facts).encode()}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    data = packed.getvalue()
    digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
    dist = {"tarball": f"{server.url}/pyodide.tgz", "integrity": f"sha512-{digest}"}
    versions = {distribution.VERSION: {**facts, "dist": dist}}
    listing = {
        "name": "pyodide",
        "dist-tags": {"latest": distribution.VERSION},
        "versions": versions,
    }
    server.pages |= {"/pyodide": json.dumps(listing).encode(), "/pyodide.tgz": data}


def wheel():
    """Return an empty wheel."""
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        folder = "private_thing-1.0.dist-info"
        file.writestr(
            f"{folder}/METADATA", "Metadata-Version: 2.1\nName: private-thing\nVersion: 1.0\n"
        )
        file.writestr(
            f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{folder}/RECORD", "")
    return packed.getvalue()

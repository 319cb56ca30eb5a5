"""The service as operators deploy it: a container file, settings by environment, TLS by a proxy."""

from __future__ import annotations

import http.server
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import httpx2
import pytest

import atoll

pytest.importorskip("uvicorn")

from atoll.config import REPL_VARIABLES
from atoll.service.settings import ServiceSettings, variable

ROOT = Path(__file__).resolve().parents[2]
OF_A_CONNECTION = {"connection", "content-length", "transfer-encoding"}


class Proxy(http.server.BaseHTTPRequestHandler):
    """What docs/operations.md has nginx do: TLS ends here, and the scheme is passed on."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        given = {name.lower(): value for name, value in self.headers.items()}
        headers = {name: given[name] for name in given.keys() - OF_A_CONNECTION}
        headers["x-forwarded-proto"] = "https"
        with httpx2.Client(trust_env=False, timeout=60) as client:
            answer = client.request(
                self.command, self.server.behind + self.path, headers=headers, content=body
            )
        self.send_response(answer.status_code)
        for name in {"content-type", "set-cookie"} & set(answer.headers):
            self.send_header(name, answer.headers[name])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_DELETE = do_PUT = do_POST  # noqa: N815 - the server's names

    def log_message(self, *_):
        pass


@pytest.fixture
def certificate(tmp_path):
    """Return the files of a certificate for this machine and of its key."""
    key, made = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject,
         "-keyout", key, "-out", made], check=True, capture_output=True)  # fmt: skip
    return made, key


@pytest.fixture
def https(certificate, monkeypatch):
    """Start a proxy with a certificate that clients trust; return its address."""
    made, key = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)

        def start(behind):
            server.behind = behind
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f"https://127.0.0.1:{server.server_address[1]}", context_of(made)

        yield start
        server.shutdown()


def context_of(certificate):
    return ssl.create_default_context(cafile=certificate)


def started(spawn):
    """Start the service; return it and what it has printed when it is ready."""
    process = spawn("serve")
    shown = ""
    while "Ctrl-C" not in shown:
        line = process.stdout.readline()
        assert line, process.communicate()
        shown += line
    return process, shown


@pytest.mark.spec("R2.16")
def test_a_service_with_settings_by_environment_is_reached_by_https(
    spawn, https, monkeypatch, tmp_path
):
    for name, value in {"FOLDER": tmp_path / "service", "PORT": 0, "TIER": "bare"}.items():
        monkeypatch.setenv(f"ATOLL_SERVE_{name}", str(value))
    process, shown = started(spawn)
    behind, key = re.search(r"http://127\.0\.0\.1:\d+", shown)[0], re.search(r"atl_\S+", shown)[0]
    assert (tmp_path / "service" / "service.sqlite3").exists()
    url, trusting = https(behind)
    with atoll.create_sandbox(backend="remote", url=url, api_key=key) as box:
        assert box.execute("6 * 7").value == 42
    with httpx2.Client(verify=trusting, trust_env=False) as browser:
        page = {"origin": url, "sec-fetch-site": "same-origin"}
        answer = browser.post(f"{url}/console/login", json={"key": key}, headers=page)
    assert answer.status_code == 200, answer.text
    assert answer.headers["set-cookie"].startswith("__Host-atoll=")
    assert "; Secure" in answer.headers["set-cookie"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.spec("R2.16")
def test_the_container_file_names_what_is_there():
    text = (ROOT / "Containerfile").read_text()
    lines = [line.split() for line in text.splitlines() if line and line[0] != "#"]
    copied = [name for word, *names in lines if word == "COPY" for name in names[:-1]]
    assert copied
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (installed,) = re.findall(r"/src\[(.*?)\]", text)
    assert set(installed.split(",")) <= set(project["optional-dependencies"])
    settings = [one.partition("=")[0] for word, *given in lines if word == "ENV" for one in given]  # fmt: skip
    assert settings
    assert {one.removeprefix("ATOLL_SERVE_").lower() for one in settings} - {"path"} <= set(
        ServiceSettings.__dataclass_fields__
    )
    needed = re.findall(r"tools/[\w.]+", (ROOT / "hatch_build.py").read_text())
    assert needed
    assert set(needed) <= set(copied), "the build hook's files are not in the image"
    assert ["CMD", '["atoll",', '"serve"]'] in lines
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{name}" for name in copied} <= set(ignored), "the builder would not be sent these"


@pytest.mark.spec("R2.16", "R2.17")
def test_docker_build_finds_the_container_file():
    assert os.readlink(ROOT / "Dockerfile") == "Containerfile"
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {"!Dockerfile", "!Containerfile"} <= set(ignored), "a link needs what it leads to"


@pytest.mark.spec("R2.16", "R2.17")
def test_the_compose_file_starts_the_service_of_the_container_file():
    service = pytest.importorskip("yaml").safe_load((ROOT / "compose.yaml").read_text())
    (volume,), (atoll,) = service["volumes"], service["services"].values()
    image = (ROOT / "Containerfile").read_text()
    assert atoll["build"] == "."
    (folder,) = re.findall(r"^VOLUME (\S+)$", image, re.MULTILINE)
    assert f"{volume}:{folder}" in atoll["volumes"]
    (port,) = re.findall(r"^EXPOSE (\d+)$", image, re.MULTILINE)
    assert [one.rpartition(":")[2] for one in atoll["ports"]] == [port]
    passed = atoll["environment"]
    assert set(passed.values()) == {None}, "a default of its own"
    known = {variable(name) for name in ServiceSettings.__dataclass_fields__}
    known |= {*REPL_VARIABLES.values(), "ATOLL_STATE_KEY"}
    assert (
        {"ATOLL_SERVE_TLS_CERTIFICATE", "ATOLL_SERVE_TLS_KEY", "REPL_ENABLED"}
        <= set(passed)
        <= known
    )
    described = (ROOT / "docs" / "operations.md").read_text()
    for option in atoll["security_opt"]:
        assert f"--security-opt {option}" in described
    tls = next(one.split(":")[1] for one in atoll["volumes"] if one.startswith("./tls:"))
    assert f"ATOLL_SERVE_TLS_CERTIFICATE={tls}/" in described


@pytest.mark.spec("R2.16")
@pytest.mark.parametrize("secure", [True, False])
def test_the_health_check_of_the_image_follows_the_settings(
    spawn, certificate, monkeypatch, tmp_path, secure
):
    settings = {"FOLDER": tmp_path / "service", "PORT": 0, "TIER": "bare"}
    if secure:
        settings["TLS_CERTIFICATE"], settings["TLS_KEY"] = certificate
    for name, value in settings.items():
        monkeypatch.setenv(f"ATOLL_SERVE_{name}", str(value))
    process, shown = started(spawn)
    scheme, port = re.search(r"(https?)://127\.0\.0\.1:(\d+)", shown).groups()
    assert scheme == ("https" if secure else "http")
    monkeypatch.setenv("ATOLL_SERVE_PORT", port)
    text = (ROOT / "Containerfile").read_text().replace("\\\n", "")
    (check,) = re.findall(r"^HEALTHCHECK CMD python (.*)$", text, re.MULTILINE)
    command = shlex.join([sys.executable]) + " " + check
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert subprocess.run(command, shell=True, capture_output=True, timeout=60).returncode != 0

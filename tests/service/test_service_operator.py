"""`atoll serve` as its operator meets it: folders, ports, certificates, signals, a kill."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import ipaddress
import json
import os
import queue
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.errors import ConfigError
from atoll.service.storage.database import Database
from atoll.state.store import SqliteStateStore

COMMAND = (sys.executable, "-m", "atoll.cli.main", "serve", "--tier", "bare")


class Served:
    """`atoll serve` as a process; what it prints is read until it serves."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--folder", str(folder), "--port", "0", *options], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.log: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            line = self.process.stdout.readline()
            assert line, list(self.log.queue)
            lines.append(line)
        self.printed = "".join(lines)
        self.url = self.printed.split()[3]
        self.key = self.printed.partition("  key      ")[2].partition("\n")[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def _read_log(self) -> None:
        for line in self.process.stderr:
            self.log.put(line)

    def ask(
        self, method: str, path: str, body: object = None, key: str = "", **headers: str
    ) -> tuple[int, dict[str, object]]:
        scheme, _, where = self.url.partition("://")
        made = http.client.HTTPConnection(where, timeout=60)
        if scheme == "https":
            made = http.client.HTTPSConnection(where, timeout=60, context=_trusting())
        with contextlib.closing(made):
            headers["authorization"] = f"Bearer {key or self.key}"
            made.request(method, path, None if body is None else json.dumps(body), headers)
            answer = made.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")

    def wait_for(self, words: str) -> str:
        while words not in (line := self.log.get(timeout=60)):
            pass
        return line


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    made = Served(folder, *options)
    try:
        yield made
    finally:
        made.close()


def refusal(folder: Path, *options: str) -> str:
    """What `atoll serve` says before it ends; it must not have served."""
    done = subprocess.run(
        [*COMMAND, "--folder", str(folder), "--port", "0", *options], text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_folder_has_one_service_and_the_second_says_who_has_it(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        status, session = first.ask("POST", "/api/v1/sessions", {})
        assert status == 201
        said = refusal(tmp_path)
        assert f"another service (process {first.process.pid}) uses the folder" in said
        assert "--folder" in said
        assert first.ask("GET", f"/api/v1/sessions/{session['id']}")[1]["state"] == "running"


def test_a_killed_service_starts_again_with_its_answers_and_files_and_tells_what_is_lost(
    tmp_path: Path,
) -> None:
    run = {"code": "import os\nos.urandom(8).hex()"}
    with serving(tmp_path) as first:
        session = first.ask("POST", "/api/v1/sessions", {})[1]["id"]
        answer = first.ask("POST", "/api/v1/run", run, **{"idempotency-key": "one"})
        context = first.ask("POST", "/api/v1/contexts?name=a", "kept")[1]["id"]
        first.process.kill()
        first.process.wait()
        key = first.key
    with serving(tmp_path) as second:
        assert second.ask("POST", "/api/v1/run", run, key, **{"idempotency-key": "one"}) == answer
        found = second.ask("GET", f"/api/v1/contexts/{context}/text", key=key)[1]
        assert found["text"] == '"kept"'
        status, problem = second.ask("GET", f"/api/v1/sessions/{session}", key=key)
        assert (status, problem["code"]) == (410, "session_lost")
        assert "1 session of an earlier process ended with it" in second.wait_for("ended")
        assert second.key == ""
        assert f"  console  {second.url}/console   (sign in with a key)\n" in second.printed
        assert f"to add one: atoll keys add NAME --folder {tmp_path}\n" in second.printed
        assert key not in second.printed


def test_sigterm_answers_what_runs_and_ends_with_0(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        answers = []
        body = {"code": "import time\ntime.sleep(1)\n'done'"}
        thread = threading.Thread(
            target=lambda: answers.append(served.ask("POST", "/api/v1/run", body))
        )
        thread.start()
        while not served.ask("GET", "/health/detailed")[1]["sandbox"]["executing"]:
            pass
        served.process.terminate()
        thread.join()
        assert (answers[0][0], answers[0][1]["value"]) == (200, "done")
        assert served.process.wait(60) == 0


@pytest.mark.long
def test_a_port_that_is_taken_and_an_address_that_is_not_ours_are_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(tmp_path, "--port", str(port))
        assert f"cannot serve at 127.0.0.1:{port}: Address already in use" in said
        assert "--port" in said
    assert "cannot serve at 192.0.2.1:0: Cannot assign" in refusal(tmp_path, "--host", "192.0.2.1")


@pytest.mark.long
def test_a_folder_that_cannot_be_used_is_named_before_anything_is_imported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refusal(tmp_path / "file" / "inner")
    assert f"cannot write to the folder {tmp_path}/file/inner: Not a directory" in said
    assert "importing" not in said
    (tmp_path / "service.sqlite3").write_bytes(b"no database" * 1000)
    said = refusal(tmp_path)
    assert f"the database {tmp_path}/service.sqlite3 cannot be used: file is not a database" in said
    assert "importing" not in said


def test_a_database_of_another_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    Database(tmp_path).close()
    path = tmp_path / "service.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match=r"written by a newer Atoll \(schema 99, this one has 1"):
        Database(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (99,)
        db.execute("PRAGMA user_version = 0")
        db.execute("ALTER TABLE keys DROP COLUMN used")
    with pytest.raises(ConfigError, match=r"the table 'keys' of .* is of another version of Atoll"):
        Database(tmp_path)


def test_a_state_put_aside_outlives_a_clock_that_jumps(tmp_path: Path) -> None:
    now = 1000.0
    store = SqliteStateStore(tmp_path / "a", 60, now=lambda: now)
    store.put("session", b"state")
    store.sweep()
    assert store.get("session") == b"state"
    now += 61
    assert store.get("session") is None
    store.close_all()


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("absent.pem", "", "cannot read certificate and key from"),
        ("text.pem", "", "text.pem has no certificate: --tls-certificate takes a file in PEM form"),
        ("good.pem", "", "good.pem has no private key: give the file of the certificate's key, in"),
        ("good.pem", "text.pem", "text.pem has no private key: give the file of the certificate's"),
        ("good.pem", "absent.key", "absent.key: No such file or directory"),
        ("good.pem", "other.key", "other.key is not the key of the certificate"),
        ("good.pem", "locked.key", "the key of the certificate has a password"),
        ("", "good.key", "a TLS key needs its certificate"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_told(
    tmp_path: Path, certificate: str, key: str, said: str
) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    write_certificate(tmp_path / "good.pem", tmp_path / "good.key", "one")
    write_certificate(tmp_path / "other.pem", tmp_path / "other.key", "other")
    write_certificate(tmp_path / "locked.pem", tmp_path / "locked.key", "locked", password=b"x")
    options = []
    for name, value in (("--tls-certificate", certificate), ("--tls-key", key)):
        options += [name, str(tmp_path / value)] if value else []
    assert said in refusal(tmp_path / "folder", *options)


def test_https_is_served_and_sighup_takes_a_new_certificate_but_no_bad_one(tmp_path: Path) -> None:
    pem, key = tmp_path / "a.pem", tmp_path / "a.key"
    write_certificate(pem, key, "first")
    files = ("--tls-certificate", str(pem), "--tls-key", str(key))
    with serving(tmp_path / "folder", *files) as served:
        assert served.url.startswith("https://127.0.0.1:")
        assert served.ask("POST", "/api/v1/run", {"code": "6 * 7"})[1]["value"] == 42
        assert common_name(served.url) == "first"
        session = served.ask("POST", "/api/v1/sessions", {})[1]["id"]
        write_certificate(pem, key, "second")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for("were read again")
        assert common_name(served.url) == "second"
        pem.write_text("broken")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for("what was loaded before is used on")
        assert common_name(served.url) == "second"
        assert served.ask("GET", f"/api/v1/sessions/{session}")[0] == 200


def test_a_client_is_told_what_is_wrong_between_http_and_https(tmp_path: Path) -> None:
    pem, key = tmp_path / "a.pem", tmp_path / "a.key"
    write_certificate(pem, key, "one")
    with serving(
        tmp_path / "folder", "--tls-certificate", str(pem), "--tls-key", str(key)
    ) as served:
        not_trusted = refused_client(served.url, served.key)
        assert "is not trusted on this machine: self-signed certificate. If it is" in not_trusted
        assert "export SSL_CERT_FILE=FILE" in not_trusted
        plain = served.url.replace("https:", "http:")
        assert refused_client(plain, served.key) == (
            f"backend 'remote' cannot run here: what answers at {plain} speaks https, not http. "
            f"Use {served.url}"
        )
        trusted = {"SSL_CERT_FILE": str(pem)}
        assert refused_client(served.url, served.key, **trusted) == "42"
        other = served.url.replace("127.0.0.1", "localhost")
        said = refused_client(other, served.key, **trusted)
        assert "is for another name than localhost. Use the name that the certificate" in said


def test_https_to_a_service_of_http_is_told(tmp_path: Path) -> None:
    with serving(tmp_path / "folder") as served:
        secure = served.url.replace("http:", "https:")
        said = f"what answers at {secure} speaks http, not https. Use {served.url}"
        assert said in refused_client(secure, served.key)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_previews_are_shown_over_https_and_ipv6(tmp_path: Path, host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    pem, key = tmp_path / "a.pem", tmp_path / "a.key"
    write_certificate(pem, key, "shown")
    files = ("--tls-certificate", str(pem), "--tls-key", str(key))
    code = "import subprocess; server = subprocess.Popen(['python3', '-m', 'http.server', '8000'])"
    with serving(tmp_path / "folder", "--host", host, "--preview-port", "0", *files) as served:
        session = f"/api/v1/sessions/{served.ask('POST', '/api/v1/sessions', {})[1]['id']}"
        assert served.ask("POST", f"{session}/executions", {"code": code})[1]["kind"] == "ok"
        while not served.ask("GET", f"{session}/ports")[1]["items"]:
            pass
        link = served.ask("POST", f"{session}/ports/8000/expose", {})[1]
        name, _, port = str(link["host"]).partition(":")
        assert link["url"].startswith(f"https://{name}:{port}/")
        assert common_name(f"https://{host}:{port}") == "shown"
        visit = http.client.HTTPSConnection(host, int(port), timeout=60, context=_trusting())
        with contextlib.closing(visit):
            visit.request("GET", "/", headers={"host": link["host"]})
            refused = visit.getresponse()
            assert (refused.status, bool(refused.read())) == (403, True)
            shown = {"host": link["host"], "atoll-preview": link["token"]}
            visit.request("GET", "/", headers=shown)
            answer = visit.getresponse()
            assert (answer.status, b"Directory listing" in answer.read()) == (200, True)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


def refused_client(url: str, key: str, **env: str) -> str:
    """Return what a client prints: the value of a cell, or its error."""
    code = (
        "import atoll, sys\n"
        "try:\n"
        "    with atoll.create_sandbox(url=sys.argv[1], api_key=sys.argv[2]) as box:\n"
        "        print(box.execute('6 * 7').value)\n"
        "except atoll.AtollError as exc: print(exc)\n"
    )
    command = [sys.executable, "-c", code, url, key]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write_certificate(pem: Path, key: Path, name: str, password: bytes | None = None) -> None:
    """Write a self-signed certificate of 127.0.0.1, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    made = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(who, who, made.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(made, hashes.SHA256())
    )
    pem.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    kind = serialization.NoEncryption()
    if password is not None:
        kind = serialization.BestAvailableEncryption(password)
    written = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kind)
    key.write_bytes(made.private_bytes(*written))
    os.chmod(key, 0o600)


def common_name(url: str) -> str:
    from cryptography import x509

    host, _, port = url.removeprefix("https://").rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)))
    found = x509.load_pem_x509_certificate(pem.encode()).subject
    return str(found.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context

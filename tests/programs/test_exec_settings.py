"""`atoll exec --settings FILE.json`: settings of sandbox-runtime, with the meaning they have there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

Exec = Callable[..., Any]


@pytest.fixture
def srt(atoll_exec: Exec, tmp_path: Path) -> Exec:
    """Return a function that runs a shell script under settings."""

    def run(script: str, settings: dict[str, Any], **options: Any) -> Any:
        path = tmp_path / "srt.json"
        path.write_text(json.dumps(settings))
        return atoll_exec("--settings", str(path), "sh", "-c", script, **options)

    return run


def _files(**rules: list[str]) -> dict[str, Any]:
    return {"filesystem": rules}


def test_all_is_read_but_what_is_denied_and_nothing_written_but_what_is_allowed(
    srt: Exec, project: Path, machine: Path
) -> None:
    for name in ("secret", "open"):
        (machine / name).mkdir()
        (machine / name / "f").write_text(name)
    script = (
        f"cat {machine}/open/f {machine}/secret/f; echo x > {machine}/open/g; echo x > here;"
        f"mkdir inner/made; echo x > inner/f; echo $TMPDIR; touch $TMPDIR/t && echo temporary"
    )
    (project / "inner").mkdir()
    done = srt(script, _files(denyRead=[str(machine / "secret")], allowWrite=["inner"]))
    assert done.stdout == "open/app\ntemporary\n", done.stderr
    assert not (machine / "open" / "g").exists()
    assert not (project / "here").exists()
    assert (project / "inner" / "f").exists()
    assert (project / "inner" / "made").is_dir()


def test_an_allow_wins_for_reading_and_a_deny_for_writing(srt: Exec, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "allowed" / "inner").mkdir(parents=True)
    (home / "work").mkdir()
    for name in ("secret", "allowed/f", "allowed/inner/secret", "work/f"):
        (home / name).write_text(name + "\n")
    reads = _files(
        denyRead=[str(home), str(home / "allowed/inner"), str(home / "work/f")],
        allowRead=[str(home / "allowed"), str(home / "work/f")],
    )
    script = f"cat {home}/secret {home}/allowed/f {home}/allowed/inner/secret {home}/work/f"
    assert srt(script, reads).stdout == "allowed/f\nwork/f\n"
    writes = _files(allowWrite=[str(home), str(home / "work")], denyWrite=[str(home)])
    srt(f"echo changed > {home}/work/f; echo changed > {home}/secret", writes)
    assert (home / "work" / "f").read_text() == "work/f\n"
    assert (home / "secret").read_text() == "secret\n"
    again = _files(allowWrite=[str(home)], allowRead=[str(home / "work")])
    srt(f"echo changed > {home}/work/f", again)
    assert (home / "work" / "f").read_text() == "changed\n", "an allowRead takes no right away"


def test_patterns_stand_for_what_is_there(srt: Exec, project: Path) -> None:
    (project / "a" / "b").mkdir(parents=True)
    for name in (".env", "a/.env", "a/b/key.pem", "a/b/plain"):
        (project / name).write_text(name + "\n")
    denied = _files(denyRead=["**/.env", "a/b/*.pem"], allowWrite=["a/**"])
    script = "cat .env a/.env a/b/key.pem a/b/plain; echo new > a/b/new; echo new > new"
    assert srt(script, denied).stdout == "a/b/plain\n"
    assert (project / "a" / "b" / "new").exists()
    assert not (project / "new").exists()
    assert "matches no path" in srt("true", _files(denyRead=["a/*/"])).stderr


def test_files_that_other_programs_obey_are_denied_though_they_do_not_exist(
    srt: Exec, project: Path
) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    nested = project / "a" / "b"
    (nested / ".git" / "hooks").mkdir(parents=True)
    (nested / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (nested / ".bashrc").write_text("mine\n")
    names = (
        *(".gitconfig", ".gitmodules", ".bashrc", ".bash_profile", ".zshrc", ".zprofile"),
        *(".profile", ".ripgreprc", ".mcp.json", ".vscode/settings.json", ".idea/x.xml"),
        *(".claude/commands/c.md", ".claude/agents/a.md", ".git/hooks/pre-commit", ".git/config"),
        *("a/b/.bashrc", "a/b/.git/hooks/pre-commit", "a/b/.git/config"),
    )
    script = "".join(f"mkdir -p {Path(name).parent}; echo x >> {name};" for name in names)
    before = (project / ".git" / "config").read_text()
    done = srt(f"{script} echo y > free; git status --short", _files(allowWrite=["."]))
    assert (project / "free").exists()
    assert sorted(done.stdout.splitlines()) == ["?? a/", "?? free"]
    assert (project / ".git" / "config").read_text() == before
    assert (nested / ".bashrc").read_text() == "mine\n"
    assert not list((project / ".git" / "hooks").glob("pre-commit"))
    left = {path.name for path in project.iterdir()}
    assert left == {".git", "a", "free"}, "nothing is left of what was made to be denied"
    allowed = {"filesystem": {"allowWrite": ["."], "allowGitConfig": True}}
    srt("git config user.name someone; echo x > .git/hooks/pre-commit", allowed)
    assert "someone" in (project / ".git" / "config").read_text()
    assert not (project / ".git" / "hooks" / "pre-commit").exists()


def test_no_socket_of_the_host_is_reached_unless_settings_say_so(srt: Exec, machine: Path) -> None:
    place = f"{machine}/s"
    script = (
        "/usr/bin/python3 -c \"import socket; a, b = socket.socketpair(); print('pair');"
        f"s = socket.socket(socket.AF_UNIX); s.connect('{place}'); print('connected')\""
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        os.chmod(place, 0o777)
        server.listen()
        assert srt(script, {}).stdout == "pair\n"
        both = {"network": {"allowAllUnixSockets": True}}
        assert srt(script, both).stdout == "pair\nconnected\n"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"filesystem": {"denyWrites": []}}, "did you mean 'denyWrite'?"),
        ({"network": {"allowedDomain": []}}, "did you mean 'allowedDomains'?"),
        ({"sandbox": {}}, "unknown key 'sandbox'"),
        ({"network": {"allowedDomains": ["*.com"]}}, "is not a domain"),
        ({"network": {"allowedDomains": ["*"]}}, "is not a domain"),
        ({"network": {"allowedDomains": ["https://example.com"]}}, "not a host"),
        ({"network": {"httpProxyPort": 8080}}, "network.httpProxyPort is not supported"),
        ({"filesystem": {"disabled": True}}, "there are always rules for files"),
        ({"filesystem": {"allowWrite": ["/"]}}, "cannot be writable"),
        ({"filesystem": {"denyRead": "x"}}, "must be a list of texts"),
        ({"mandatoryDenySearchDepth": 0}, "must be at least 1"),
        ({"credentials": {"envVars": [{"name": "A B", "mode": "deny"}]}}, "not a variable"),
        ({"credentials": {"envVars": [{"name": "A", "mode": "hide"}]}}, "deny or mask"),
        ({"credentials": {"files": [{"path": "f", "mode": "mask", "decode": "jwt"}]}}, "decode"),
        ({"credentials": {"keys": []}}, "unknown key 'keys'"),
    ],
)
def test_settings_that_mean_nothing_here_are_refused(
    srt: Exec, settings: dict[str, Any], words: str
) -> None:
    done = srt("echo ran", settings)
    assert done.returncode == 2
    assert words in done.stderr
    assert "ran" not in done.stdout


def test_keys_for_other_systems_change_nothing(srt: Exec) -> None:
    settings = {
        "network": {
            "allowedDomains": ["*.example.com", "[::1]:443", "localhost"],
            "deniedDomains": ["*"],
            "allowUnixSockets": ["/var/run/docker.sock"],
            "allowLocalBinding": False,
            "strictAllowlist": True,
            "deniedResolvedAddresses": ["10.0.0.0/8"],
        },
        "filesystem": {"denyRead": [], "allowWrite": ["missing"], "denyWrite": []},
        "ignoreViolations": {"*": ["/usr/bin"]},
        "enableWeakerNestedSandbox": False,
        "bwrapPath": "/usr/bin/bwrap",
        "git": {"safeDirectories": ["/x"]},
    }
    done = srt("echo $GIT_CONFIG_VALUE_0", settings)
    assert done.stdout == "/x\n", done.stderr


class _Echo(BaseHTTPRequestHandler):
    """Answers with what it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sent = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.path, sent, body))  # type: ignore[attr-defined]
        answer = f"{self.headers['Authorization']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def api() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    server.seen = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_masked_credential_works_and_is_never_seen(
    srt: Exec, project: Path, api: ThreadingHTTPServer
) -> None:
    token, key = "sk-live-" + "1234567890" * 5, "k3y-0123456789"
    (project / "auth.json").write_text(json.dumps({"user": "me", "key": key}))
    (project / "denied").write_text("s3cret")
    place = f"127.0.0.1:{api.server_port}"
    settings = {
        "network": {"allowedDomains": [place], "deniedDomains": []},
        "filesystem": {"allowWrite": ["."]},
        "credentials": {
            "allowPlaintextInject": True,
            "envVars": [
                {"name": "TOKEN", "mode": "mask"},
                {"name": "OTHER", "mode": "deny"},
                {"name": "PART", "mode": "mask", "extract": "pass=(\\w+)"},
            ],
            "files": [
                {"path": "auth.json", "mode": "mask", "extract": '"key": "([^"]+)"'},
                {"path": "denied", "mode": "deny"},
            ],
        },
    }
    code = (
        "import json, os, urllib.request as u, base64\n"
        "print(os.environ['TOKEN'], os.environ.get('OTHER'), os.environ['PART'])\n"
        "auth = json.load(open('auth.json')); print(auth['user'], auth['key'])\n"
        "basic = base64.b64encode(('me:' + os.environ['TOKEN']).encode()).decode()\n"
        "for way in ('Bearer ' + os.environ['TOKEN'], 'Basic ' + basic):\n"
        f"    r = u.Request('http://{place}/q?k=' + auth['key'], auth['key'].encode() * 3)\n"
        "    r.add_header('Authorization', way)\n"
        "    print(u.urlopen(r).read().decode())\n"
        "open('denied')"
    )
    (project / "ask.py").write_text(code)
    env = {**os.environ, "TOKEN": token, "OTHER": "s3cret", "PART": "user=me pass=hunter22"}
    done = srt("/usr/bin/python3 ask.py", settings, env=env)
    printed = done.stdout + done.stderr
    for secret in (token, key, "s3cret", "hunter22"):
        assert secret not in printed
    assert "user=me pass=masked_" in printed
    assert "\nme masked_" in printed
    assert "PermissionError" in done.stderr
    (path, headers, body), (_, basic, _) = api.seen  # type: ignore[attr-defined]
    assert path == f"/q?k={key}"
    assert headers["authorization"] == f"Bearer {token}"
    assert body == key.encode() * 3
    assert basic["authorization"].startswith("Basic ")
    assert "masked" not in str(api.seen)  # type: ignore[attr-defined]


def test_a_masked_credential_is_not_sent_to_other_hosts_or_in_plain_http(
    srt: Exec, api: ThreadingHTTPServer
) -> None:
    place = f"127.0.0.1:{api.server_port}"
    masked = {"name": "TOKEN", "mode": "mask"}
    network = {"allowedDomains": [place, "api.example.com"], "tlsTerminate": {}}
    script = (
        '/usr/bin/python3 -c "import os, urllib.request as u;'
        f"print(u.urlopen('http://{place}/', os.environ['TOKEN'].encode()).status)\""
    )
    env = {**os.environ, "TOKEN": "sk-live-1234567890"}
    other = {**masked, "injectHosts": ["api.example.com"]}
    for entry, more in ((masked, {}), (other, {"allowPlaintextInject": True})):
        settings = {"network": network, "credentials": {"envVars": [entry], **more}}
        assert srt(script, settings, env=env).stdout == "200\n"
    assert all(b"masked_" in body for _, _, body in api.seen)  # type: ignore[attr-defined]
    unread = {"network": {"allowedDomains": [place]}, "credentials": {"envVars": [masked]}}
    assert "need network.tlsTerminate" in srt(script, unread, env=env).stderr
    stray = {**masked, "injectHosts": ["elsewhere.example"]}
    settings = {"network": network, "credentials": {"envVars": [stray]}}
    assert "is not one of network.allowedDomains" in srt(script, settings, env=env).stderr


def test_a_text_that_does_not_match_is_denied_unless_settings_say_so(srt: Exec) -> None:
    entry = {"name": "TOKEN", "mode": "mask", "extract": "key=(x+)"}
    env = {**os.environ, "TOKEN": "s3cret"}
    for action, printed, code in ((None, "\n", 0), ("warn", "s3cret\n", 0), ("error", "", 2)):
        given = entry if action is None else {**entry, "onExtractNoMatch": action}
        settings = {"credentials": {"envVars": [given], "allowPlaintextInject": True}}
        done = srt("echo $TOKEN", settings, env=env)
        assert (done.stdout, done.returncode) == (printed, code)
        assert "nothing matches" in done.stderr


def test_a_denied_host_says_why(srt: Exec) -> None:
    settings = {
        "network": {
            "allowedDomains": ["*.example.com"],
            "deniedDomains": ["old.example.com"],
            "deniedDomainReasons": {"old.example.com": "use new.example.com"},
        }
    }
    script = (
        "/usr/bin/python3 -c \"import urllib.request as u; u.urlopen('http://old.example.com/')\""
    )
    assert "it was refused old.example.com:80: use new.example.com" in srt(script, settings).stderr

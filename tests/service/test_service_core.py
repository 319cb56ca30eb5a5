"""What sessions can do besides cells: parts of files, pauses, processes, watched folders."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

from clients import Api


def _ticks(api: Api, at: str) -> int:
    return int(api.get(f"{at}/files/content?path=n").content or b"0")


def test_parts_of_files_are_read_by_range_and_tag(api: Api) -> None:
    at = api.session()
    path = f"{at}/files/content?path=a/b.bin"
    api.put(path, content=bytes(range(256)) * 4096)
    head = api.head(path)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "1048576", b"")
    part = api.get(path, headers={"range": "bytes=256-259"})
    assert (part.status_code, part.content) == (206, bytes(range(4)))
    assert part.headers["content-range"] == "bytes 256-259/1048576"
    assert api.get(path, headers={"range": "bytes=-2"}).content == b"\xfe\xff"
    assert api.get(path, headers={"range": "bytes=1048576-"}).status_code == 416
    assert api.get(path).content == bytes(range(256)) * 4096
    tag = head.headers["etag"]
    assert api.get(path, headers={"if-none-match": tag}).status_code == 304
    api.run(at, "open('a/b.bin', 'ab').write(b'!')")
    changed = api.get(path, headers={"if-none-match": tag, "range": "bytes=-1", "if-range": tag})
    assert (changed.status_code, len(changed.content)) == (200, 1048577)


def test_what_is_no_file_is_not_read(api: Api) -> None:
    at = api.session()
    api.run(at, "import os\nos.mkfifo('pipe')\nos.mkdir('d')\nos.symlink('/etc/passwd', 'link')")
    names = ("pipe", "d", "missing", "../../etc/passwd", "link")
    found = {name: api.get(f"{at}/files/content?path={name}") for name in names}
    assert {name: one.status_code for name, one in found.items()} == {
        "pipe": 422, "d": 422, "missing": 404, "../../etc/passwd": 422, "link": 422,
    }  # fmt: skip


def test_a_paused_session_does_nothing_and_goes_on_where_it_was(api: Api) -> None:
    at = api.session()
    api.run(at, (
        "import subprocess, threading, time\nx = 41\n"
        "def count():\n  n = 0\n  while True:\n    n += 1\n    open('m', 'w').write(str(n))\n"
        "    __import__('os').replace('m', 'n')\n    time.sleep(0.01)\n"
        "threading.Thread(target=count, daemon=True).start()\n"
        "p = subprocess.Popen(['sh', '-c', 'while true; do date +%N > o; sleep 0.01; done'])"
    ))  # fmt: skip
    while _ticks(api, at) < 3:
        pass
    paused = api.post(f"{at}/pause").json()
    assert (paused.get("state"), paused.get("paused_as")) == ("paused", "frozen"), paused
    service = api.service.service
    box = service.sessions._sessions[paused["id"]].session.box
    usage = box._guest.lease.usage
    before = usage.cpu_seconds()
    time.sleep(0.2)
    assert usage.cpu_seconds() - before < 0.01, "nothing runs, processes of the guest included"
    assert api.get(at).json()["usage"]["memory_bytes"] > 0, "looking at it does not wake it"
    assert api.get(at).json()["state"] == "paused"
    assert api.run(at, "x + 1")["value"] == 42
    resumed = api.get(at).json()
    assert resumed["state"] == "running"
    first = _ticks(api, at)
    while _ticks(api, at) == first:
        pass
    api.post(f"{at}/pause")
    assert api.post(f"{at}/resume").json()["state"] == "running"
    api.post(f"{at}/pause")
    assert api.delete(at).status_code == 204


def test_a_fork_of_a_session_runs_on_while_its_parent_is_paused(api: Api) -> None:
    at = api.session()
    api.run(at, "x = 1")
    (made,) = api.post(f"{at}/fork", json={}).json()
    api.post(f"{at}/pause")
    fork = f"/api/v1/sessions/{made['session']['id']}"
    assert api.run(fork, "x + 1", timeout_ms=10_000)["value"] == 2
    assert api.get(at).json()["state"] == "paused"
    assert api.run(at, "x")["value"] == 1


def _events(api: Api, path: str, body: object = None) -> list[dict[str, object]]:
    headers = {"accept": "application/x-ndjson"}
    method = "GET" if body is None else "POST"
    done = api.request(method, path, json=body, headers=headers)
    return [json.loads(line) for line in done.text.splitlines()]


def test_processes_run_beside_a_cell_with_their_streams_apart(api: Api) -> None:
    at = api.session()
    api.post(f"{at}/processes", json={"command": ["true"]})
    busy = {"code": "import time\nwhile True: time.sleep(0.01)", "detach": True}
    cell = api.post(f"{at}/executions", json=busy).json()["id"]
    told = _events(api, f"{at}/processes", {
        "command": "echo out; echo err >&2; pwd; echo $WORD; exit 3",
        "cwd": "/tmp", "env": {"WORD": "hi"},
    })  # fmt: skip
    assert told[0]["type"] == "started"
    texts = {kind: "".join(str(e["text"]) for e in told if e["type"] == kind)
             for kind in ("stdout", "stderr")}  # fmt: skip
    assert texts == {"stdout": "out\n/tmp\nhi\n", "stderr": "err\n"}
    assert (told[-1]["type"], told[-1]["exit_code"]) == ("exited", 3)
    assert api.get(f"/api/v1/executions/{cell}").status_code == 202, "the cell runs on"
    api.post(f"/api/v1/executions/{cell}/cancel")


def test_a_process_takes_input_and_signals_and_its_output_can_be_read_again(api: Api) -> None:
    at = api.session()
    made = api.post(f"{at}/processes", json={"command": ["cat"], "stdin": True})
    assert made.status_code == 201
    one = f"{at}/processes/{made.json()['id']}"
    assert made.json()["pid"] > 0
    big = b"0123456789abcdef" * 20_000
    assert api.post(f"{one}/input", content=big).json() == {"written": len(big)}
    assert api.post(f"{one}/input?end=1", content=b"last").json() == {"written": 4}
    told = _events(api, f"{one}/events")
    assert "".join(str(e.get("text", "")) for e in told).encode() == big + b"last"
    assert told[-1]["exit_code"] == 0
    again = _events(api, f"{one}/events?out={len(big)}")
    assert [e.get("text") for e in again if e["type"] == "stdout"] == ["last"]
    sleeper = api.post(f"{at}/processes", json={"command": "sleep 60 & sleep 60"}).json()
    two = f"{at}/processes/{sleeper['id']}"
    assert api.post(f"{two}/signal", json={"signal": "SIGKILL"}).status_code == 204
    assert _events(api, f"{two}/events")[-1]["signal"] == 9
    assert api.post(f"{two}/signal", json={"signal": "SIGNONE"}).status_code == 400
    listed = api.get(f"{at}/processes").json()["items"]
    assert [p["running"] for p in listed] == [False, False]
    missing = api.post(f"{at}/processes", json={"command": ["/no/such"]})
    assert (missing.status_code, missing.json()["code"]) == (422, "process")
    assert api.get(f"{at}/processes/99").status_code == 404


def test_output_is_read_exactly_and_waits_for_more(api: Api) -> None:
    at = api.session()
    command = [
        "python3",
        "-c",
        "import os\nos.write(1, bytes(range(256)))\nos.write(2, b'x')\ninput()",
    ]
    made = api.post(f"{at}/processes", json={"command": command, "stdin": True})
    one = f"{at}/processes/{made.json()['id']}"
    found: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    while (len(found["stdout"]), len(found["stderr"])) != (256, 1):
        at_now = f"out={len(found['stdout'])}&err={len(found['stderr'])}"
        got = api.get(f"{one}/output?{at_now}&wait=20000").json()
        for name in found:
            found[name] += base64.b64decode(got[name])
    assert found == {"stdout": bytes(range(256)), "stderr": b"x"}
    assert got["process"]["running"]
    told = _events(api, f"{one}/output?out=256&err=1")
    assert told[0]["stdout"] == ""
    api.post(f"{one}/input?end=1", content=b"")
    last = api.get(f"{one}/output?out=256&err=1&wait=20000").json()
    while last["process"]["running"]:
        last = api.get(f"{one}/output?out=256&err=1&wait=20000").json()
    assert last["process"]["exit_code"] == 1, "input() found no line"


def test_a_terminal_is_resized(api: Api) -> None:
    at = api.session()
    body = {"command": "read x; stty size", "pty": {"rows": 10, "cols": 20}}
    made = api.post(f"{at}/processes", json=body).json()
    one = f"{at}/processes/{made['id']}"
    assert made["pty"]
    assert api.post(f"{one}/resize", json={"rows": 7, "cols": 9}).status_code == 204
    assert api.post(f"{one}/resize", json={"rows": -1}).status_code == 400
    api.post(f"{one}/input", content=b"\n")
    assert "7 9" in "".join(str(e.get("text", "")) for e in _events(api, f"{one}/events"))


def test_changes_of_files_are_told_as_they_happen(api: Api) -> None:
    at = api.session()
    with (
        Api(api.service, api.headers["authorization"].partition(" ")[2]) as watcher,
        watcher.stream("GET", f"{at}/files/watch?recursive=1") as stream,
    ):
        told = (json.loads(line) for line in stream.iter_lines())
        assert next(told)["type"] == "watching"
        api.run(at, "import os\nos.makedirs('a/b')")
        seen: list[tuple[str, str]] = []

        def until(*wanted: tuple[str, str]) -> None:
            while not set(wanted) <= set(seen):
                change = next(told)
                if change["type"] == "change":
                    seen.append((change["path"], change["kind"]))

        until(("a", "created"))
        api.run(
            at, "import os\nopen('a/x', 'w').write('1')\nos.rename('a/x', 'a/y')\nos.remove('a/y')"
        )
        until(("a/x", "created"), ("a/x", "moved_from"), ("a/y", "moved_to"), ("a/y", "deleted"))
    for path in ("../..", "/etc", "missing"):
        assert api.get(f"{at}/files/watch?path={path}").status_code == 404, path


def test_processes_leave_no_descriptors_with_the_service(api: Api) -> None:
    at = api.session()

    def start() -> int:
        _events(api, f"{at}/processes", {"command": ["true"]})
        return len(list(Path("/proc/self/fd").iterdir()))

    first = [start() for _ in range(4)][-1]
    assert max(start() for _ in range(12)) <= first + 8, "a guest that is parked meanwhile has some"

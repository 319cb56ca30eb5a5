"""E2B's dialect over plain HTTP: the shapes on the wire, and what a token opens.

The SDKs themselves judge it in tests/plugs/judge_e2b.py.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import struct
from typing import Any

import httpx2
import pytest
from own_service import OwnService

from atoll.service.dialects.e2b.routes import CONTROL


class Box:
    """A sandbox as a client of E2B's API uses it."""

    def __init__(self, service: OwnService, key: str, **body: Any) -> None:
        self.http = httpx2.Client(base_url=service.url + "/e2b", timeout=60, trust_env=False)
        self.key = {"x-api-key": key}
        made = self.http.post(
            "/v2/sandboxes", json={"templateID": "bare", "timeout": 60, **body}, headers=self.key
        )
        assert made.status_code == 201, made.text
        self.made = made.json()
        self.id = self.made["sandboxID"]
        self.headers = {
            "e2b-sandbox-id": self.id,
            "x-access-token": self.made["envdAccessToken"],
        }

    def end(self) -> None:
        self.http.delete(f"/sandboxes/{self.id}", headers=self.key)
        self.http.close()

    def lines(self, code: str, **body: Any) -> list[dict[str, Any]]:
        done = self.http.post("/execute", json={"code": code, **body}, headers=self.headers)
        assert done.status_code == 200, done.text
        return [json.loads(line) for line in done.content.splitlines()]

    def rpc(self, method: str, **message: Any) -> httpx2.Response:
        return self.http.post(f"/{method}", json=message, headers=self.headers)

    def stream(self, method: str, **message: Any) -> list[tuple[int, dict[str, Any]]]:
        body = json.dumps(message).encode()
        framed = struct.pack(">BI", 0, len(body)) + body
        headers = {**self.headers, "content-type": "application/connect+json"}
        data = self.http.post(f"/{method}", content=framed, headers=headers).content
        found = []
        while data:
            flags, length = struct.unpack_from(">BI", data)
            found.append((flags, json.loads(data[5 : 5 + length])))
            data = data[5 + length :]
        return found


@pytest.fixture
def key(service: OwnService) -> str:
    return service.add_key(tenant="e2b")


@pytest.fixture
def box(service: OwnService, key: str):
    made = Box(service, key)
    yield made
    made.end()


def test_a_cell_is_told_line_by_line(box: Box) -> None:
    told = box.lines("print('out')\n'a' + 'b'")
    assert [one["type"] for one in told] == [
        "stdout", "result", "number_of_executions", "end_of_execution",
    ]  # fmt: skip
    assert (told[0]["text"], isinstance(told[0]["timestamp"], int)) == ("out\n", True)
    assert told[1] == {"type": "result", "text": "ab", "is_main_result": True}
    (failed,) = [one for one in box.lines("1 / 0") if one["type"] == "error"]
    assert (failed["name"], failed["value"]) == ("ZeroDivisionError", "division by zero")
    assert failed["traceback"].startswith("Traceback")


def test_a_command_is_a_stream_of_frames(box: Box) -> None:
    process = {"cmd": "/bin/bash", "args": ["-c", "echo hi; exit 3"]}
    told = box.stream("process.Process/Start", process=process)
    assert "event" in told[0][1], told
    assert told[0][1]["event"]["start"]["pid"] > 0
    assert told[1] == (0, {"event": {"data": {"stdout": base64.b64encode(b"hi\n").decode()}}})
    end = {"exitCode": 3, "exited": True, "status": "exit status 3"}
    assert told[2:] == [(0, {"event": {"end": end}}), (2, {})]
    ((flags, last),) = box.stream("process.Process/Connect", process={"pid": 999_999})
    assert (flags, last["error"]["code"]) == (2, "not_found")


def test_files_are_written_by_form_and_described(box: Box) -> None:
    form = {"file": ("/home/user/folder/a", b"one")}
    done = box.http.post("/files", files=form, headers=box.headers)
    assert done.json() == [{"name": "a", "type": "file", "path": "/app/folder/a"}]
    entry = box.rpc("filesystem.Filesystem/Stat", path="folder/a").json()["entry"]
    assert (entry["type"], entry["size"], entry["path"]) == ("FILE_TYPE_FILE", "3", "/app/folder/a")
    assert box.http.get("/files?path=/app/folder/a", headers=box.headers).content == b"one"
    missing = box.rpc("filesystem.Filesystem/Stat", path="none")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    again = box.rpc("filesystem.Filesystem/MakeDir", path="folder")
    assert (again.status_code, again.json()["code"]) == (409, "already_exists")


def test_a_link_is_described_with_what_it_leads_to(box: Box) -> None:
    links = {
        "near": "folder/a",
        "absolute": "/app/folder",
        "chain": "near",
        "broken": "nothing",
        "outside": "/etc/passwd",
        "round": "round",
        "up": "../../etc/passwd",
    }
    box.lines("import os; os.mkdir('folder'); open('folder/a', 'w').write('one')")
    box.lines(f"for name, to in {links!r}.items(): os.symlink(to, name)")
    found = {}
    for name in links:
        entry = box.rpc("filesystem.Filesystem/Stat", path=name).json()["entry"]
        assert (entry["isSymlink"], entry["path"]) == (True, f"/app/{name}")
        found[name] = (entry["type"].removeprefix("FILE_TYPE_"), entry["symlinkTarget"])
    assert found == {
        "near": ("FILE", "/app/folder/a"),
        "absolute": ("DIRECTORY", "/app/folder"),
        "chain": ("FILE", "/app/folder/a"),
        "broken": ("SYMLINK", "/app/nothing"),
        "outside": ("SYMLINK", "/etc/passwd"),
        "round": ("SYMLINK", "/app/round"),
        "up": ("SYMLINK", "/etc/passwd"),
    }
    plain = box.rpc("filesystem.Filesystem/Stat", path="folder/a").json()["entry"]
    assert (plain["isSymlink"], "symlinkTarget" in plain) == (False, False)
    listed = box.rpc("filesystem.Filesystem/ListDir", path=".").json()["entries"]
    kinds = {entry["name"]: entry["symlinkTarget"] for entry in listed if entry["isSymlink"]}
    assert kinds == {name: target for name, (_, target) in found.items()}


def test_a_name_that_is_not_utf_8_is_listed(box: Box) -> None:
    box.lines(r"open(b'a\xff', 'w').close()")
    (entry,) = box.rpc("filesystem.Filesystem/ListDir", path=".").json()["entries"]
    assert (entry["name"], entry["path"]) == ("a\ufffd", "/app/a\ufffd")


def test_a_watcher_sees_whether_a_write_makes_or_changes_a_file(box: Box) -> None:
    def write(name: str) -> None:
        box.http.post(f"/files?path={name}", content=b"text", headers=box.headers)

    write("old")
    made = box.rpc("filesystem.Filesystem/CreateWatcher", path=".").json()
    seen: list[tuple[str, str]] = []
    for name in ("old", "new", "last"):
        write(name)
    while ("last", "WRITE") not in seen:
        found = box.rpc("filesystem.Filesystem/GetWatcherEvents", **made).json()["events"]
        seen += [(one["name"], one["type"].removeprefix("EVENT_TYPE_")) for one in found]
    kinds = [kind for name, kind in seen if name != "last"]
    assert (seen[0], kinds) == (("old", "WRITE"), ["WRITE", "CREATE", "WRITE"])


def test_a_killed_process_is_gone_when_the_answer_comes(box: Box) -> None:
    for _ in range(20):
        process = {"cmd": "/bin/sleep", "args": ["60"]}
        body = json.dumps({"process": process}).encode()
        framed = struct.pack(">BI", 0, len(body)) + body
        path = "/process.Process/Start"
        with box.http.stream("POST", path, content=framed, headers=box.headers) as told:
            first = next(told.iter_bytes())
            pid = json.loads(first[5:])["event"]["start"]["pid"]
            kill = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
            assert box.rpc("process.Process/SendSignal", **kill).status_code == 200
            assert box.rpc("process.Process/List").json() == {"processes": []}


def test_a_pause_stops_commands_and_their_streams(box: Box) -> None:
    process = {"cmd": "/bin/bash", "args": ["-c", "echo up; sleep 60"]}
    body = json.dumps({"process": process}).encode()
    framed = struct.pack(">BI", 0, len(body)) + body
    headers = {**box.headers, "keepalive-ping-interval": "1", "connect-timeout-ms": "60000"}
    path = "/process.Process/Start"
    with box.http.stream("POST", path, content=framed, headers=headers) as told:
        pieces = told.iter_bytes()
        seen = next(pieces)
        while b"stdout" not in seen:
            seen += next(pieces)
        paused = f"/sandboxes/{box.id}/pause"
        with httpx2.Client(base_url=box.http.base_url, trust_env=False, timeout=60) as second:
            assert second.post(paused, json={}, headers=box.key).status_code == 204
            assert second.post(paused, json={}, headers=box.key).status_code == 409
            assert b"was not found" in b"".join(pieces)
            about = second.get(f"/sandboxes/{box.id}", headers=box.key).json()
            assert about["state"] == "paused"
            assert second.get("/health", headers=box.headers).status_code == 502
            connect = f"/v2/sandboxes/{box.id}/connect"
            assert second.post(connect, json={}, headers=box.key).status_code == 200
    listed = box.rpc("process.Process/List").json()["processes"]
    assert [one["config"]["args"] for one in listed] == [process["args"]]


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "/app/../etc/x", "/proc/1"])
def test_paths_outside_the_sandbox_s_folders_are_refused(box: Box, path: str) -> None:
    assert box.http.get("/files", params={"path": path}, headers=box.headers).status_code == 400
    assert box.rpc("filesystem.Filesystem/Remove", path=path).status_code == 400


@pytest.mark.parametrize(
    "body",
    [b"", b"\0\0", b"\0\0\0\0\xff{}", b"\1\0\0\0\2{}", b"\0\0\0\0\1[", b"\0\xff\xff\xff\xff"],
)
def test_a_broken_frame_is_refused(box: Box, body: bytes) -> None:
    done = box.http.post("/process.Process/Start", content=body, headers=box.headers)
    assert (done.status_code, done.content[:1]) == (200, b"\2")
    assert json.loads(done.content[5:])["error"]["code"] == "invalid_argument"


def test_a_token_opens_its_own_sandbox_only(box: Box, service: OwnService, key: str) -> None:
    other = Box(service, key)
    stolen = {**box.headers, "e2b-sandbox-id": other.id}
    unknown = {**box.headers, "e2b-sandbox-id": "ses_none"}
    answers = [
        box.http.get("/health", headers=headers)
        for headers in (stolen, unknown, {"e2b-sandbox-id": other.id})
    ]
    assert {(one.status_code, one.text) for one in answers} == {(502, answers[0].text)}
    assert "was not found" in answers[0].json()["message"]
    assert box.http.get("/health", headers=box.headers).status_code == 204
    other.end()
    assert box.http.get("/health", headers=other.headers).status_code == 502


def test_another_tenant_does_not_find_a_sandbox(box: Box, service: OwnService) -> None:
    foreign = {"x-api-key": service.add_key(tenant="stranger-e2b")}
    named = [row for row in CONTROL if "{session}" in row[1]]
    assert len(named) > 9
    for method, path, *_ in named:
        done = box.http.request(method, path.replace("{session}", box.id), json={}, headers=foreign)
        assert (done.status_code, done.json()["code"]) == (404, 404), path
    assert box.http.get("/v2/sandboxes", headers=foreign).json() == []
    wrong = {"x-api-key": "atl_wrong"}
    assert box.http.get(f"/sandboxes/{box.id}", headers=wrong).status_code == 401
    assert box.http.get("/health", headers=box.headers).status_code == 204


def test_a_token_may_do_what_its_key_may(service: OwnService) -> None:
    key = service.add_key(tenant="e2b-narrow", scopes=("sessions",))
    box = Box(service, key)
    refused = box.http.post("/execute", json={"code": "1"}, headers=box.headers)
    assert refused.status_code == 403
    assert box.rpc("filesystem.Filesystem/Stat", path=".").json()["code"] == "permission_denied"
    service.call(lambda: service.service.keys.revoke(key.split("_")[1]))
    assert box.http.get("/health", headers=box.headers).status_code == 401
    box.key = {"x-api-key": service.add_key(tenant="e2b-narrow")}
    box.end()


def test_a_signed_url_is_for_one_path_operation_and_time(box: Box, service: OwnService) -> None:
    box.http.post("/files?path=a", content=b"one", headers=box.headers)

    def answer(path: str, *words: str, **query: str) -> int:
        text = ":".join((*words[:3], box.headers["x-access-token"], *words[3:]))
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        query |= {"path": path, "signature": f"v1_{digest}"}
        return httpx2.get(f"{service.url}/files", params=query, trust_env=False).status_code

    assert answer("a", "a", "read", "") == 200
    assert answer("b", "a", "read", "") == 401
    assert answer("a", "a", "write", "") == 401
    assert answer("a", "a", "read", "", "9999999999", signature_expiration="9999999999") == 200
    assert answer("a", "a", "read", "", "1", signature_expiration="1") == 401
    # The signature of a file whose name has colons is not good for another file.
    assert answer("a:read:x", "a:read:x", "read", "") == 404
    assert answer("a", "a:read:x", "read", "", username="x:read:") == 401


def test_a_wrong_signature_is_not_hashed_once_for_each_sandbox(service: OwnService) -> None:
    hashed = []

    real = hashlib.sha256

    def counted(data: bytes = b"") -> Any:
        hashed.append(len(data))
        return real(data)

    query = {"path": "p" * 50_000, "signature": "v1_" + "A" * 43}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atoll.service.dialects.e2b.dialect.hashlib.sha256", counted)
        done = httpx2.get(f"{service.url}/files", params=query, trust_env=False)
    assert done.status_code == 401
    assert [size for size in hashed if size > 50_000] == [50_007]


def test_watchers_are_limited_and_end_with_their_sandbox(box: Box, service: OwnService) -> None:
    made = [box.rpc("filesystem.Filesystem/CreateWatcher", path=".") for _ in range(17)]
    assert [one.status_code for one in made] == [200] * 16 + [429]
    box.http.delete(f"/sandboxes/{box.id}", headers=box.key)
    e2b = service.service.e2b
    service.call(e2b.sweep)
    assert not [one for one in e2b.watched if one.id == box.id]


@pytest.mark.parametrize("field", [{"autoPause": True}, {"mcp": {"a": {}}}, {"network": {"x": 1}}])
def test_what_is_not_served_is_refused(service: OwnService, key: str, field: dict) -> None:
    body = {"templateID": "bare", **field}
    url = f"{service.url}/e2b/v2/sandboxes"
    done = httpx2.post(url, json=body, headers={"x-api-key": key}, trust_env=False)
    assert (done.status_code, done.json()["code"]) == (400, 400)


def test_creating_is_idempotent_by_key(service: OwnService, key: str) -> None:
    headers = {"x-api-key": key, "idempotency-key": "create-once"}
    body = {"templateID": "bare", "metadata": {"job": "once"}}
    with httpx2.Client(base_url=f"{service.url}/e2b", trust_env=False, timeout=60) as http:
        made = [http.post("/v2/sandboxes", json=body, headers=headers).json() for _ in range(2)]
        assert made[0]["sandboxID"] == made[1]["sandboxID"]
        listed = http.get("/v2/sandboxes?metadata=job%3Donce&state=running", headers=headers).json()
        assert [one["sandboxID"] for one in listed] == [made[0]["sandboxID"]]
        http.delete(f"/sandboxes/{made[0]['sandboxID']}", headers=headers)


def test_a_fork_runs_commands_of_its_own(box: Box) -> None:
    def run(one: Box, line: str) -> str:
        told = one.stream("process.Process/Start", process={"cmd": "/bin/sh", "args": ["-c", line]})
        pieces = [found["event"].get("data", {}) for _, found in told[:-1]]
        return "".join(base64.b64decode(one.get("stdout", "")).decode() for one in pieces)

    assert run(box, "echo parent") == "parent\n"
    (made,) = box.http.post(f"/sandboxes/{box.id}/fork", json={}, headers=box.key).json()
    child = copy.copy(box)
    child.id = made["sandbox"]["sandboxID"]
    child.headers = {
        "e2b-sandbox-id": child.id,
        "x-access-token": made["sandbox"]["envdAccessToken"],
    }
    assert run(child, "sleep 0.2; echo child") == "child\n"
    assert run(box, "echo again") == "again\n"
    box.http.delete(f"/sandboxes/{child.id}", headers=box.key)


def test_a_snapshot_holds_variables_and_files_or_is_refused(
    service: OwnService, key: str, box: Box
) -> None:
    box.lines("kept = 5; open('note.txt', 'w').write('abc')")
    box.stream("process.Process/Start", process={"cmd": "/bin/true"})  # it has left its output
    path = f"/sandboxes/{box.id}/snapshots"
    made = box.http.post(path, json={"name": "mine"}, headers=box.key).json()
    listed = box.http.get("/snapshots", headers=box.key).json()
    assert listed == [{"snapshotID": made["snapshotID"], "names": ["mine"]}]
    again = Box(service, key, templateID=made["snapshotID"] + ":default")
    told = again.lines("kept, open('note.txt').read()")
    assert told[0]["text"] == "(5, 'abc')"
    again.end()
    assert box.http.post(path, json={"memory": False}, headers=box.key).status_code == 400
    box.lines("import threading; lock = threading.Lock()")
    refused = box.http.post(path, json={}, headers=box.key)
    assert (refused.status_code, "lock" in refused.json()["message"]) == (409, True)
    stranger = {"x-api-key": service.add_key(tenant="e2b-other")}
    body = {"templateID": made["snapshotID"]}
    assert box.http.post("/v2/sandboxes", json=body, headers=stranger).status_code == 404
    gone = f"/templates/{made['snapshotID']}"
    assert box.http.delete(gone, headers=stranger).status_code == 404
    assert box.http.delete(gone, headers=box.key).status_code == 204
    assert box.http.get("/snapshots", headers=box.key).json() == []


def test_a_terminal_has_its_size_and_gives_its_end(box: Box) -> None:
    process = {"cmd": "/bin/sh", "args": ["-c", "stty size; tty; exit 3"]}
    size = {"size": {"rows": 20, "cols": 80}}
    told = box.stream("process.Process/Start", process=process, pty=size)
    events = [one["event"] for _, one in told if "event" in one]
    pieces = [one["data"]["pty"] for one in events if "data" in one]
    text = b"".join(map(base64.b64decode, pieces)).decode()
    assert text.split()[:2] == ["20", "80"]
    assert "/dev/pts/" in text
    assert events[-1]["end"]["exitCode"] == 3
    for wrong in ({"size": {"rows": -1, "cols": 1}}, {"size": {"rows": "1", "cols": 1}}, {"a": 1}):
        _, last = box.stream("process.Process/Start", process=process, pty=wrong)[-1]
        assert last["error"]["code"] == "invalid_argument"


def test_every_name_is_a_template_and_a_missing_route_has_a_message(service: OwnService) -> None:
    headers = {"x-api-key": service.add_key()}
    with httpx2.Client(base_url=service.url + "/e2b", headers=headers, trust_env=False) as http:
        found = http.get("/templates/aliases/my-team:v1")
        assert (found.status_code, found.json()) == (
            200,
            {"templateID": "my-team:v1", "public": True},
        )
        missing = http.get("/volumes")
        assert (missing.status_code, missing.json()["code"]) == (404, 404)
        assert "no such route" in missing.json()["message"]


def test_a_list_is_filtered_by_all_that_is_asked(service: OwnService) -> None:
    key = service.add_key(tenant="e2b-filters")
    first = Box(service, key, templateID="bare", metadata={"a b": "c&d"})
    second = Box(service, key, templateID="numeric")

    def listed(**query: str) -> list[str]:
        found = first.http.get("/v2/sandboxes", params=query, headers=first.key)
        return [one["sandboxID"] for one in found.json()]

    started = first.http.get(f"/sandboxes/{second.id}", headers=first.key).json()["startedAt"]
    assert listed() == [second.id, first.id]
    assert listed(order="asc") == [first.id, second.id]
    assert listed(template="numeric") == [second.id]
    assert listed(metadata="a%2520b=c%2526d") == [first.id]
    assert listed(startedAfter="2999-01-01T00:00:00+00:00") == []
    assert second.id in listed(startedAfter=started.replace("Z", "+00:00"))
    assert first.http.get("/v2/sandboxes?startedAfter=x", headers=first.key).status_code == 400
    first.end()
    second.end()


def test_a_data_frame_is_one_result_with_its_data(service: OwnService) -> None:
    box = Box(service, service.add_key(), templateID="full")
    code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"
    (result,) = [line for line in box.lines(code) if line["type"] == "result"]
    assert result["is_main_result"]
    assert result["text"].split() == ["a", "b", "0", "1", "x", "1", "2", "y"]
    assert "<table" in result["html"]
    assert result["data"] == {"a": [1, 2], "b": ["x", "y"]}
    box.end()


def test_an_image_is_one_result_with_its_text(service: OwnService) -> None:
    box = Box(service, service.add_key(), templateID="full")
    told = box.lines("from PIL import Image\nImage.new('RGB', (4, 4))")
    (result,) = [line for line in told if line["type"] == "result"]
    assert result["is_main_result"]
    assert result["text"].startswith("<PIL.Image.Image")
    assert base64.b64decode(result["png"]).startswith(b"\x89PNG")
    box.end()


def test_a_kill_breaks_off_the_stream_of_a_cell(service: OwnService, key: str) -> None:
    box = Box(service, key)
    cell = {"code": "import time\nprint('up', flush=True)\ntime.sleep(60)"}
    with box.http.stream("POST", "/execute", json=cell, headers=box.headers) as told:
        pieces = told.iter_bytes()
        assert b"up" in next(pieces)
        with httpx2.Client(base_url=box.http.base_url, trust_env=False, timeout=60) as second:
            gone = second.delete(f"/sandboxes/{box.id}", headers=box.key)
            assert gone.status_code == 204
        with pytest.raises(httpx2.RemoteProtocolError):
            list(pieces)
    assert box.http.get("/health", headers=box.headers).status_code == 502
    box.http.close()


def test_metrics_of_another_time_are_none(service: OwnService) -> None:
    box = Box(service, service.add_key())
    asked = f"/sandboxes/{box.id}/metrics"
    assert len(box.http.get(asked, headers=box.key).json()) == 1
    assert box.http.get(f"{asked}?end=1000", headers=box.key).json() == []
    assert box.http.get(f"{asked}?start=99999999999", headers=box.key).json() == []
    box.end()

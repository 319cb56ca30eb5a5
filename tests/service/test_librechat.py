"""LibreChat's dialect: what its clients send, and exactly what they read back."""

from __future__ import annotations

import base64
import dataclasses
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from clients import Api
from own_service import OwnService

from atoll.service.dialects.librechat.credentials import Credentials
from atoll.service.http.problems import Problem

ID = re.compile(r"[A-Za-z0-9_-]{21}\Z")
AGENT = {"User-Agent": "LibreChat/1.0"}


class LibreChat(httpx2.Client):
    """Sends what LibreChat and `@librechat/agents` send."""

    def __init__(self, url: str, prefix: str = "/v1", **headers: str) -> None:
        super().__init__(
            base_url=url + prefix, headers={**AGENT, **headers}, timeout=60, trust_env=False
        )

    def exec(self, code: str, lang: str = "py", **body: Any) -> dict[str, Any]:
        done = self.post("/exec", json={"lang": lang, "code": code, **body})
        assert done.status_code == 200, done.text
        return done.json()

    def upload(self, name: str, data: bytes, **fields: str) -> dict[str, Any]:
        fields = {"kind": "user", "id": "someone", **fields}
        done = self.post("/upload", data=fields, files={"file": (name, data)})
        assert done.status_code == 200, done.text
        return done.json()


@pytest.fixture
def key(service: OwnService, request: pytest.FixtureRequest) -> str:
    return service.add_key(tenant=f"lc{abs(hash(request.node.nodeid))}")


@pytest.fixture
def chat(service: OwnService, key: str) -> Iterator[LibreChat]:
    with LibreChat(service.url, **{"x-api-key": key}) as client:
        yield client


def test_code_runs_and_its_files_can_be_downloaded(chat: LibreChat) -> None:
    done = chat.exec("import sys\nprint('hi', *sys.argv[1:])\nopen('/mnt/data/a b.txt','w').write('x')",
                     args=["one", "two"], intent="ignored")  # fmt: skip
    assert (done["stdout"], done["stderr"]) == ("hi one two\n", "")
    (file,) = done["files"]
    assert ID.match(file["id"])
    assert ID.match(done["session_id"])
    assert file["name"] == "a b.txt"
    assert file["storage_session_id"] == file["session_id"] == done["session_id"]
    got = chat.get(f"/download/{file['storage_session_id']}/{file['id']}")
    assert (got.content, got.headers["content-type"]) == (b"x", "application/octet-stream")
    shown = "attachment; filename=\"a b.txt\"; filename*=UTF-8''a%20b.txt"
    assert got.headers["content-disposition"] == shown
    assert got.headers["x-codeapi-execution-profile"] == "default"
    at = f"/sessions/{file['storage_session_id']}/objects/{file['id']}"
    known = chat.get(at, params={"kind": "user", "id": "someone"}).json()
    assert known["originalFilename"] == "a b.txt"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", known["lastModified"])
    gone = chat.request("DELETE", at).json()
    assert gone == {"message": "deleted", "session_id": done["session_id"], "fileId": file["id"]}
    lost = chat.get(f"/download/{file['storage_session_id']}/{file['id']}")
    assert (lost.status_code, lost.json()["error"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("lang", "code", "stdout", "stderr"),
    [
        ("bash", "echo out; echo err >&2; exit 3", "out\n", "err\nexit code 3"),
        ("py", "print('a'); raise SystemExit(2)", "a\n", "exit code 2"),
        ("python", "print(1, flush=True); import os; os.kill(os.getpid(), 9)", "1\n",
         "Sandbox exited with code"),
        ("py", "1 / 0", "", "ZeroDivisionError"),
        ("py", "print('begun', flush=True)\nwhile True: pass", "begun\n", "Time limit exceeded"),
        ("py", "b'1' * (3 << 30)", "", "Memory"),
        ("sh", "python3 -c 'print(6 * 7)'; echo aGk= | base64 -d", "42\nhi", ""),
    ],
)  # fmt: skip
def test_a_guests_failure_is_an_answer(
    chat: LibreChat, lang: str, code: str, stdout: str, stderr: str
) -> None:
    done = chat.exec(code, lang, timeout=2_000)
    assert done["stdout"] == stdout
    assert stderr in done["stderr"]
    assert (done["stderr"] == "") == (stderr == "")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"lang": "rs", "code": "1"}, "Unsupported language: rs"),
        ({"lang": "py"}, "invalid"),
        ({"lang": "py", "code": "1", "files": [{"id": "x", "name": "../x"}]}, "invalid"),
        ({"lang": "py", "code": "1", "runtime_session_hint": "a b"}, "invalid"),
        ([1], "invalid"),
    ],
)
def test_what_cannot_be_run_is_rejected(chat: LibreChat, body: Any, error: str) -> None:
    done = chat.post("/exec", json=body)
    assert (done.status_code, done.json()["error"]) == (400, error)


def test_uploads_are_inputs_and_come_back_inherited_modified_or_deleted(chat: LibreChat) -> None:
    sent = {name: chat.upload(name, b"1") for name in ("same.txt", "new.txt", "gone.txt")}
    fixed = chat.upload("fixed.txt", b"1", read_only="true")
    files = [
        {"id": one["files"][0]["fileId"], "storage_session_id": one["storage_session_id"],
         "resource_id": "someone", "kind": "user", "name": f"in/{one['files'][0]['filename']}"}
        for one in (*sent.values(), fixed)
    ]  # fmt: skip
    code = (
        "import os\nprint(sorted(os.listdir('/mnt/data/in')))\n"
        "open('in/new.txt', 'w').write('two')\nos.remove('in/gone.txt')\n"
        "open('in/fixed.txt', 'w').write('two')"
    )
    done = chat.exec(code, files=files)
    assert done["stdout"] == "['fixed.txt', 'gone.txt', 'new.txt', 'same.txt']\n"
    assert done["deleted_files"] == ["in/gone.txt"]
    told = {one["id"]: one for one in done["files"]}
    assert told[files[0]["id"]]["inherited"] is True
    assert told[files[0]["id"]]["name"] == "in/same.txt"
    assert told[files[3]["id"]]["inherited"] is True, "a read-only file keeps its bytes"
    (changed,) = [one for one in done["files"] if "modified_from" in one]
    assert changed["modified_from"] == {
        "id": files[1]["id"], "storage_session_id": files[1]["storage_session_id"],
    }  # fmt: skip
    got = chat.get(f"/download/{changed['storage_session_id']}/{changed['id']}")
    assert got.content == b"two"


def test_of_two_files_with_one_name_the_last_is_there_and_old_field_names_work(
    chat: LibreChat,
) -> None:
    first, second = chat.upload("a.txt", b"first"), chat.upload("a.txt", b"second")
    files = [
        {"id": one["files"][0]["fileId"], "session_id": one["session_id"], "name": "a.txt"}
        for one in (first, second)
    ]
    assert chat.exec("print(open('a.txt').read())", files=files)["stdout"] == "second\n"


def test_a_batch_tells_of_each_file_and_a_list_has_four_forms(chat: LibreChat) -> None:
    files = [("file", (name, b"12")) for name in ("sub/a.csv", "b.txt", "../bad")]
    done = chat.post("/upload/batch", data={"kind": "agent", "id": "ag1"}, files=files).json()
    assert (done["message"], done["succeeded"], done["failed"]) == ("partial_success", 2, 1)
    assert [one["status"] for one in done["files"]] == ["success", "success", "error"]
    sid, fid = done["storage_session_id"], done["files"][0]["fileId"]
    scope = {"kind": "agent", "id": "ag1"}
    lists = {
        detail: chat.get(f"/files/{sid}", params={**scope, "detail": detail}).json()
        for detail in ("simple", "summary", "full", "normalized")
    }
    assert lists["simple"][0] == f"{sid}/{fid}.csv"
    assert lists["summary"][0].keys() == {"name", "size", "lastModified", "etag"}
    full = lists["full"][0]
    assert (full["id"], full["storage_session_id"]) == (fid, sid)
    assert full["metadata"] == {"content-type": "text/csv", "original-filename": "sub/a.csv"}
    assert lists["normalized"][0]["name"] == "sub/a.csv"
    assert chat.get("/files/AAAAAAAAAAAAAAAAAAAAA").json() == []
    other = chat.get(f"/files/{sid}", params={"kind": "agent", "id": "another"})
    assert other.status_code == 403
    none = chat.post("/upload/batch", data=scope, files=[("file", ("../bad", b"1"))])
    assert (none.status_code, none.json()["message"]) == (400, "error")
    assert chat.post("/upload", json={}).status_code == 400


def test_a_file_that_is_too_large_is_refused_and_leaves_nothing(
    service: OwnService, chat: LibreChat
) -> None:
    blobs = service.settings.folder / "blobs"
    before = set(blobs.iterdir())
    small = object.__getattribute__(service.settings, "max_upload_bytes")
    object.__setattr__(service.settings, "max_upload_bytes", 1000)
    try:
        done = chat.post("/upload", data={"kind": "user"}, files={"file": ("a", b"1" * 2000)})
    finally:
        object.__setattr__(service.settings, "max_upload_bytes", small)
    assert (done.status_code, done.json()["message"]) == (413, "File size limit exceeded")
    assert set(blobs.iterdir()) == before


def test_a_runtime_keeps_its_folder_and_no_variables(chat: LibreChat) -> None:
    hint = {"runtime_session_hint": "v2:conversation:" + "0" * 32}
    headers = {"X-CodeAPI-Expected-Profile": "stateful"}
    first = chat.exec("x = 1\nopen('kept.txt', 'w').write('1')", **hint)
    assert (first["runtime_status"], len(first["runtime_session_id"])) == ("new", 43)
    again = chat.post("/exec", headers=headers, json={
        "lang": "bash", "code": "cat kept.txt; rm kept.txt; echo 2 > other.txt", **hint,
    })  # fmt: skip
    assert again.headers["x-codeapi-execution-profile"] == "stateful"
    assert (again.json()["stdout"], again.json()["runtime_status"]) == ("1", "reused")
    assert again.json()["deleted_files"] == ["kept.txt"]
    last = chat.exec("import os\nprint(os.listdir('.'), 'x' in globals())", **hint)
    assert last["stdout"] == "['other.txt'] False\n"
    assert last["runtime_session_id"] == first["runtime_session_id"]
    alone = chat.exec("import os\nprint(os.listdir('.'))")
    assert alone["stdout"] == "[]\n"
    assert "runtime_session_id" not in alone


def test_profiles_and_workspaces_that_are_not_served_are_told(chat: LibreChat) -> None:
    body = {"lang": "py", "code": "1"}
    bad = chat.post("/exec", json=body, headers={"X-CodeAPI-Expected-Profile": "other"})
    assert (bad.status_code, bad.json()["error"]) == (400, "invalid_execution_profile")
    attached = chat.post("/exec", json=body, headers={"X-LibreChat-Code-Workspace-ID": "w"})
    assert (attached.status_code, attached.json()["error"]) == (400, "unsupported_capability")


TOOLS = [
    {"name": "get-weather", "description": "Weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "add", "parameters": {"type": "object", "properties": {}}},
]  # fmt: skip


def _start(chat: LibreChat, code: str, **body: Any) -> dict[str, Any]:
    done = chat.post("/exec/programmatic", json={"code": code, "tools": TOOLS, **body})
    assert done.status_code == 200, done.text
    return done.json()


def _answer(chat: LibreChat, waits: dict[str, Any], *results: Any) -> dict[str, Any]:
    told = [
        {"call_id": call["id"], "result": one, "is_error": False}
        for call, one in zip(waits["tool_calls"], results, strict=True)
    ]
    body = {"continuation_token": waits["continuation_token"], "tool_results": told}
    done = chat.post("/exec/programmatic", json=body)
    assert done.status_code == 200, done.text
    return done.json()


def test_tools_are_called_side_by_side_and_nothing_runs_twice(chat: LibreChat) -> None:
    code = (
        "import asyncio\nopen('runs.txt', 'a').write('once ')\n"
        "a, b = await asyncio.gather(get_weather(city='Oslo'), add(x=1, y=2))\n"
        "print(a['t'], b)\n"
        "c = await get_weather('Rome')\nprint(c, open('runs.txt').read())"
    )
    waits = _start(chat, code)
    assert waits["status"] == "tool_call_required"
    assert waits["tool_calls"] == [
        {"id": "call_001", "name": "get-weather", "input": {"city": "Oslo"}},
        {"id": "call_002", "name": "add", "input": {"x": 1, "y": 2}},
    ]
    second = _answer(chat, waits, {"t": 3.5}, 3)
    assert second["tool_calls"] == [
        {"id": "call_003", "name": "get-weather", "input": {"city": "Rome"}}
    ]
    assert _answer(chat, waits, {"t": 3.5}, 3) == second, "a retry gets the same answer"
    end = _answer(chat, second, ["hot"])
    assert end["status"] == "completed"
    assert end["stdout"] == "3.5 3\n['hot'] once \n"
    assert [one["name"] for one in end["files"]] == ["runs.txt"]


def test_a_tool_that_fails_raises_and_a_bad_program_tells_what_happened(chat: LibreChat) -> None:
    waits = _start(chat, "try:\n    await add()\nexcept Exception as e:\n    print('caught', e)")
    body = {"continuation_token": waits["continuation_token"], "tool_results": [
        {"call_id": "call_001", "result": None, "is_error": True, "error_message": "no such"}]}  # fmt: skip
    assert chat.post("/exec/programmatic", json=body).json()["stdout"] == "caught no such\n"
    bad = _start(chat, "1 / 0")
    assert (bad["status"], bad["error"]) == ("error", "Sandbox exited with code 1")
    assert "ZeroDivisionError" in bad["stderr"]
    late = _start(chat, "while True: pass", timeout=1000)
    assert (late["status"], late["error"]) == ("error", "Time limit exceeded")


def test_the_time_of_tools_is_not_the_codes(chat: LibreChat) -> None:
    waits = _start(chat, "print(await add())", timeout=1000)
    time.sleep(1.2)
    assert _answer(chat, waits, 7)["stdout"] == "7\n"


def test_bash_calls_tools_too(chat: LibreChat) -> None:
    code = "a=$(get_weather '{\"city\": \"Oslo\"}')\necho got $a\nadd '{}' || echo failed"
    waits = _start(chat, code, lang="bash")
    assert waits["tool_calls"] == [
        {"id": "call_001", "name": "get-weather", "input": {"city": "Oslo"}}
    ]
    second = _answer(chat, waits, {"t": 1})
    body = {"continuation_token": second["continuation_token"], "tool_results": [
        {"call_id": "call_002", "is_error": True, "error_message": "no"}]}  # fmt: skip
    end = chat.post("/exec/programmatic", json=body).json()
    assert (end["status"], end["stdout"]) == ("completed", 'got {"t": 1}\nfailed\n')
    assert "no" in end["stderr"]


def test_a_continuation_that_failed_fails_again_in_the_same_way(
    chat: LibreChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = _start(chat, "print(await add(x=1, y=2))")
    told = [{"call_id": waits["tool_calls"][0]["id"], "result": 3, "is_error": False}]
    body = {"continuation_token": waits["continuation_token"], "tool_results": told}

    async def fail(*_args: Any) -> Any:
        raise Problem(507, "storage", "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("atoll.service.dialects.librechat.programmatic._until_answer", fail)
        first = chat.post("/exec/programmatic", json=body)
    again = chat.post("/exec/programmatic", json=body)
    assert first.status_code == again.status_code == 507
    assert first.json()["error"] == again.json()["error"]


def test_continuations_are_bound_to_their_calls_and_users(
    chat: LibreChat, service: OwnService
) -> None:
    waits = _start(chat, "await add()")
    good = [{"call_id": "call_001", "result": 1, "is_error": False}]
    at = "/exec/programmatic"

    def status(client: httpx2.Client, token: Any, results: Any) -> int:
        body = {"continuation_token": token, "tool_results": results}
        return client.post(at, json=body).status_code

    token = waits["continuation_token"]
    assert status(chat, "short", good) == 400
    assert status(chat, "A" * 43, good) == 404
    assert status(chat, token, []) == 400
    assert status(chat, token, good + good) == 400
    assert status(chat, token, [{"call_id": "call_009"}]) == 400
    with LibreChat(service.url, **{"x-api-key": service.add_key(tenant="other-lc")}) as stranger:
        assert status(stranger, token, good) == 403
    assert chat.post(at, json={"code": "1", "tools": []}).status_code == 400
    assert chat.post(at, json={"code": "1", "tools": TOOLS * 60}).status_code == 400
    assert status(chat, token, good) == 200
    assert status(chat, token, [{"call_id": "call_001", "result": 2}]) == 409


def test_a_request_is_cancelled_by_its_id_also_before_it_comes(chat: LibreChat) -> None:
    at, header = "/exec/programmatic", "X-LibreChat-Code-Request-ID"
    early = chat.post(f"{at}/cancel", json={"request_id": "e" * 20})
    assert (early.status_code, early.json()) == (202, {"status": "cancellation_requested"})
    body = {"code": "await add()", "tools": TOOLS}
    assert chat.post(at, json=body, headers={header: "e" * 20}).status_code == 409
    answers: list[Any] = []
    busy = {"code": "import time\ntime.sleep(60)", "tools": TOOLS}

    def run() -> None:
        answers.append(chat.post(at, json=busy, headers={header: "r" * 20}).json())

    running = threading.Thread(target=run)
    running.start()
    while not answers:
        chat.post(f"{at}/cancel", json={"request_id": "r" * 20})
        running.join(0.2)
    assert answers[0].get("error") in ("Programmatic execution request cancelled", "cancelled")
    assert chat.post(f"{at}/cancel", json={"request_id": "x"}).status_code == 400


def test_who_asks_is_found_in_every_way_that_librechat_has(service: OwnService, key: str) -> None:
    basic = base64.b64encode(f"{key}:".encode()).decode()
    ways = [
        {"x-api-key": key},
        {"authorization": f"Bearer {key}"},
        {"authorization": f"Basic {basic}"},
    ]
    body = {"lang": "py", "code": "print(1)"}
    for headers in ways:
        with LibreChat(service.url, **headers) as client:
            assert client.post("/exec", json=body).status_code == 200, headers
    with LibreChat(service.url, "", **ways[0]) as root:
        assert root.post("/exec", json=body).status_code == 200
        assert root.get("/v1/health").text == "OK"
    with LibreChat(service.url, **{**ways[0], "authorization": f"Bearer {key}x"}) as two:
        done = two.post("/exec", json=body)
        assert (done.status_code, done.json()["message"]) == (
            400,
            "Ambiguous authentication headers",
        )
    with LibreChat(service.url) as nobody:
        assert nobody.post("/exec", json=body).status_code == 401
        cookie = nobody.post("/exec", json=body, headers={"cookie": f"atoll={key}"})
        assert cookie.status_code == 401


def test_a_forwarded_address_opens_no_door(
    service: OwnService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a client whose own address is in no network that needs no key."""
    ident = service.add_key(tenant="open").split("_")[1]
    settings = dataclasses.replace(
        service.settings, librechat_key=ident, librechat_networks=("172.18.0.0/16",)
    )
    found = service.call(lambda: Credentials(settings, service.service.keys))
    monkeypatch.setattr(service.service.librechat, "credentials", found)
    body = {"lang": "py", "code": "print(1)"}
    for header in ("x-forwarded-for", "forwarded", "x-real-ip"):
        with LibreChat(service.url, **{header: "172.18.0.5"}) as client:
            assert client.post("/exec", json=body).status_code == 401, header


def test_another_tenants_files_are_not_there(
    chat: LibreChat, api: Api, service: OwnService
) -> None:
    sent = chat.upload("a.txt", b"secret")
    sid, fid = sent["storage_session_id"], sent["files"][0]["fileId"]
    with LibreChat(service.url, **{"x-api-key": service.add_key(tenant="thief")}) as thief:
        assert thief.get(f"/files/{sid}").json() == []
        for method, path in (("GET", f"/download/{sid}/{fid}"), ("DELETE", f"/files/{sid}/{fid}"),
                             ("GET", f"/sessions/{sid}/objects/{fid}")):  # fmt: skip
            assert thief.request(method, path).status_code == 404
        files = [{"id": fid, "storage_session_id": sid, "name": "a.txt", "kind": "user"}]
        refused = thief.post("/exec", json={"lang": "py", "code": "1", "files": files})
        assert refused.status_code == 404


def test_too_many_requests_are_told_as_the_client_reads_it(service: OwnService) -> None:
    from atoll.service.access.keys import Quota

    slow = service.add_key(tenant="slow", quota=Quota(requests_per_second=0.1, burst=1))
    with LibreChat(service.url, **{"x-api-key": slow}) as client:
        client.get("/files/x")
        done = client.get("/files/x")
    assert done.status_code == 429
    assert done.json()["error"] == "rate_limited"
    assert done.json()["retry_after_seconds"] == 10

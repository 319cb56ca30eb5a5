"""The native API: what is asked for happens, and is told in the shapes of docs/service.md."""

from __future__ import annotations

import base64
import json
import threading

import answers
import own_service
import pytest

import atoll
from atoll.service.api.file_operations import OPERATIONS
from atoll.service.http import openapi


def test_one_command_runs_code_and_answers_with_its_result(api):
    done = api.post("/api/v1/run", json={"code": "print('hi')\n6 * 7"})
    result = done.json()
    assert done.status_code == 200
    assert (result["kind"], result["stdout"], result["value"], result["isolation"]) == (
        "ok",
        "hi\n",
        42,
        "jailed",
    )
    assert done.headers["x-request-id"].startswith("req_")


def test_a_guests_fault_is_a_result_and_not_an_http_error(api):
    done = api.post("/api/v1/run", json={"code": "1 / 0"})
    assert done.status_code == 200
    assert (done.json()["kind"], done.json()["error_type"]) == ("error", "ZeroDivisionError")


def test_an_upload_that_is_too_large_is_told_the_limit_and_where_it_is_set(api):
    made = api.post("/api/v1/sessions", json={"policy": {"file_size_bytes": 1000}})
    session = f"/api/v1/sessions/{made.json()['id']}"
    refused = api.put(f"{session}/files/content?path=big", content=b"x" * 2000)
    assert refused.status_code == 413
    assert (refused.json()["code"], refused.json()["file_error"]) == ("file", "too_large")
    limit = "it has 2,000 bytes; the limit is 1,000, as policy.file_size_bytes says"
    assert refused.json()["detail"] == f"'big': {limit}"
    outside = api.get(f"{session}/files/content?path=../x").json()
    assert outside["detail"] == "'../x': the path is outside the working folder"


def test_files_go_in_with_the_code_and_come_out_with_the_result(api):
    body = {
        "code": "open('out.txt', 'w').write(open('in.txt').read().upper())",
        "files": [{"path": "in.txt", "content_b64": base64.b64encode(b"abc").decode()}],
        "return_files": True,
    }
    (made,) = api.post("/api/v1/run", json=body).json()["artifacts"]
    assert (made["path"], base64.b64decode(made["content_b64"])) == ("out.txt", b"ABC")


def test_a_session_keeps_variables_and_tells_what_it_used(api):
    session = api.session(metadata={"run": "7"})
    api.run(session, "x = list(range(10))")
    assert api.run(session, "len(x)")["value"] == 10
    facts = api.get(session).json()
    assert (facts["executions"], facts["metadata"], facts["state"]) == (2, {"run": "7"}, "running")
    assert facts["usage"]["cpu_seconds"] > 0
    assert facts["usage"]["peak_memory_bytes"] > 0
    assert facts["idle_expires_at"] <= facts["expires_at"]
    assert api.delete(session).status_code == 204
    assert api.get(session).status_code == 404


def test_a_name_that_no_variable_can_have_is_told_from_one_that_is_missing(api):
    session = api.session()
    assert api.get(f"{session}/variables/missing").status_code == 404
    refused = api.get(f"{session}/variables/a.b")
    assert refused.status_code == 400
    assert "execute" in refused.json()["detail"]


def test_events_are_numbered_and_end_with_one_result(api):
    events = api.events("/api/v1/run", {"code": "print('a', flush=True)\nprint('b')"})
    assert [one["seq"] for one in events] == list(range(1, len(events) + 1))
    kinds = [one["type"] for one in events]
    assert (kinds[:2], kinds[-1]) == (["accepted", "started"], "result")
    assert "".join(one["text"] for one in events if one["type"] == "stdout") == "a\nb\n"
    assert events[-1]["result"]["stdout"] == "a\nb\n"


def test_output_arrives_while_the_code_runs_and_a_tool_is_called_back(api):
    session = api.session(tools=[{"name": "lookup"}])
    body, seen = {"code": "print('50 %\\r', end='', flush=True)\nlookup('x', n=2)"}, []
    headers = {"accept": "text/event-stream"}
    with api.stream("POST", f"{session}/executions", json=body, headers=headers) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            seen.append(event["type"])
            if event["type"] == "accepted":
                answers = f"/api/v1/executions/{event['execution']}/tool_results"
            if event["type"] == "tool_call":
                assert (event["name"], event["args"], event["kwargs"]) == (
                    "lookup",
                    ["x"],
                    {"n": 2},
                )
                assert "stdout" in seen
                assert api.post(answers, json=[{"id": "call_99", "value": 1}]).status_code == 404
                assert api.post(answers, json=[{"id": event["id"], "value": 5}]).status_code == 204
                assert api.post(answers, json=[{"id": event["id"], "value": 6}]).status_code == 409
    assert event["result"]["value"] == 5


def test_events_can_be_read_again_from_any_number(api):
    session = api.session()
    started = api.post(f"{session}/executions", json={"code": "print('x' * 10)", "detach": True})
    assert started.status_code == 202
    path = f"/api/v1/executions/{started.json()['id']}"
    headers = {"accept": "text/event-stream"}
    whole = api.get(f"{path}/events", headers=headers).text.split("\n\n")[:-1]
    rest = api.get(f"{path}/events", headers={**headers, "last-event-id": "2"}).text
    assert rest.split("\n\n")[:-1] == whole[2:]
    assert api.get(path).json()["stdout"] == "x" * 10 + "\n"


def test_an_execution_is_cancelled_and_the_session_keeps_its_state(api):
    session = api.session()
    api.run(session, "kept = 1")
    started = api.post(f"{session}/executions", json={"code": "while True: pass", "detach": True})
    path = f"/api/v1/executions/{started.json()['id']}"
    with api.stream("GET", f"{path}/events") as stream:
        for line in stream.iter_lines():
            event = json.loads(line)
            if event["type"] == "started":
                assert api.post(f"{path}/cancel").status_code == 202
    assert event["result"]["kind"] == "cancelled"
    assert api.run(session, "kept")["value"] == 1


def test_forks_checkpoints_and_states(api):
    session = api.session()
    api.run(session, "n = 1; open('f', 'w').write('1')")
    made = api.post(f"{session}/fork", json={"count": 2, "name": "twin"}).json()
    twins = [f"/api/v1/sessions/{one['session']['id']}" for one in made]
    mark = api.post(f"{session}/checkpoints", json={"name": "before"}).json()["id"]
    api.run(session, "n = 2")
    api.run(twins[0], "n = 3")
    assert api.post(f"{session}/rollback", json={"mark": mark}).status_code == 204
    assert [api.run(one, "n")["value"] for one in (session, *twins)] == [1, 3, 1]
    assert api.get(twins[0]).json()["parent"] == session.rpartition("/")[2]
    assert len(api.get(session).json()["children"]) == 2
    state = api.post(f"{session}/save").json()
    again = api.session(state=state["id"])
    assert api.run(again, "n, open('f').read()")["value_repr"] == "(1, '1')"
    assert api.delete(f"/api/v1/states/{state['id']}").status_code == 204
    assert api.get(f"/api/v1/states/{state['id']}").status_code == 404


def test_files_are_read_in_parts(api):
    session = api.session()
    where = f"{session}/files/content?path=dir/data.bin"
    assert api.put(where, content=b"0123456789").status_code == 204
    assert api.get(f"{session}/files?path=dir").json()["entries"][0]["size"] == 10
    for asked, part in (("bytes=2-4", b"234"), ("bytes=7-", b"789"), ("bytes=-2", b"89")):
        answer = api.get(where, headers={"range": asked})
        assert (answer.status_code, answer.content) == (206, part)
    assert api.get(where, headers={"range": "bytes=10-"}).status_code == 416
    moved = api.post(f"{session}/files/move", json={"path": "dir/data.bin", "target": "b"})
    assert (moved.json(), api.get(where).status_code) == ({"path": "b"}, 404)
    assert api.delete(f"{session}/files/content?path=b").status_code == 204


def test_a_context_of_a_remote_sandbox_is_there_once_and_goes_with_the_last_one(api, tmp_path):
    text = "the same text, " * 10_000
    (tmp_path / "text").write_text(text)

    key = api.headers["authorization"].removeprefix("Bearer ")

    def stored():
        return [one["size"] for one in api.get("/api/v1/contexts").json()["items"]]

    remote = {"backend": "remote", "url": api.service.url, "api_key": key}
    with (
        atoll.create_sandbox(context=tmp_path / "text", **remote) as one,
        atoll.create_sandbox(context=text, **remote) as other,
    ):
        assert stored() == [len(text)]
        twin = one.fork()
        other.initialize("short")
        one.destroy()
        assert stored() == [len(text)]
        assert twin.execute("len(context)").value == len(text)
        twin.initialize({"rows": list(range(50_000))})
        assert len(stored()) == 1
        assert stored() != [len(text)]
        assert twin.execute("context['rows'][-1]").value == 49_999
        twin.destroy()
        assert stored() == []
        with pytest.raises(atoll.ConfigError):
            other.initialize(object())
        assert other.execute("1").value == 1
    assert stored() == []


def test_a_context_is_uploaded_once_for_many_sessions(api):
    text = "needle " + "hay " * 50_000
    made = api.post("/api/v1/contexts", content=text.encode()).json()
    for _ in range(2):
        session = api.session(context={"id": made["id"]})
        assert (
            api.run(session, "len(context), context[:6]")["value_repr"]
            == f"({len(text)}, 'needle')"
        )
    assert api.get(session).json()["context_shared"] is True


def test_every_operation_of_the_openapi_document_has_a_name_of_its_own_and_tells_of_202(api):
    paths = api.get("/openapi.json").json()["paths"]
    names = [one["operationId"] for methods in paths.values() for one in methods.values()]
    assert len(set(names)) == len(names)
    for path in ("/run", "/sessions/{session}/executions", "/sessions/{session}/shell"):
        assert "202" in paths[f"/api/v1{path}"]["post"]["responses"]


def test_the_openapi_document_has_every_route_and_shape(api):
    found = api.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    run = found["paths"]["/api/v1/run"]["post"]
    assert run["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Run")
    assert found["components"]["schemas"]["Run"]["required"] == ["code"]
    assert len(found["paths"]) > 25


STREAMS = {
    "/api/v1/executions/{execution}/events",
    "/api/v1/sessions/{session}/processes/{process}/events",
    "/api/v1/sessions/{session}/files/watch",
    "/api/v1/runs/{run}/events",
    "/api/v1/overview/events",
    "/e2b/execute",
    "/e2b/filesystem.Filesystem/WatchDir",
    "/e2b/process.Process/Start",
    "/e2b/process.Process/Connect",
    "/e2b/process.Process/StreamInput",
}
BYTES = {
    "/api/v1/executions/{execution}/displays/{number}",
    "/api/v1/sessions/{session}/files/content",
    "/api/v1/runs/{run}/trajectory.jsonl",
    "/v1/health",
    "/metrics",
    "/v1/download/{storage}/{file}",
    "/download/{storage}/{file}",
    "/e2b/files",
    "/files",
}


def test_every_operation_has_a_response_schema_unless_it_streams_or_sends_bytes():
    paths = openapi.document()["paths"]
    bare = {
        path
        for path, methods in paths.items()
        for operation in methods.values()
        if "204" not in operation["responses"] and "content" not in answers.success(operation)
    }
    assert bare == STREAMS | BYTES
    described = [one for methods in paths.values() for one in methods.values()]
    assert sum("content" in answers.success(one) for one in described) > 110


def test_an_answer_that_its_schema_does_not_allow_is_found(api):
    api.get("/api/v1/whoami")
    sent = own_service.SENT[-1]
    assert answers.fault(sent) == ""
    known = json.loads(sent.body)
    wrong = sent._replace(body=json.dumps({**known, "scopes": [1]}).encode())
    assert "$.scopes[0]: 1 is not of type 'string'" in answers.fault(wrong)


@pytest.mark.spec("R2.13")
def test_health_tells_of_the_sandboxes_to_keys_alone(api, service):
    assert api.get("/health").json()["status"] == "healthy"
    assert api.get("/ready").status_code == 200
    found = api.get("/health/detailed").json()
    assert found["sandbox"]["isolation"] == "jailed"
    assert found["sandbox"]["tiers"]["numeric"]["warm_seconds"] > 0
    assert {"executing", "queued", "live"} <= set(found["sandbox"])


def test_metrics_name_routes_and_never_ids(api):
    session = api.session()
    api.run(session, "1")
    text = api.get("/metrics").text
    assert 'atoll_executions_total{isolation="jailed",outcome="ok"}' in text
    assert 'route="/api/v1/sessions/{session}/executions"' in text
    assert session.rpartition("/")[2] not in text


def test_a_wrong_body_says_which_field(api):
    done = api.post("/api/v1/run", json={"code": "1", "tiemout_ms": 5})
    assert done.status_code == 400
    assert done.headers["content-type"] == "application/problem+json"
    assert "tiemout_ms" in done.json()["detail"]
    for body, words in [
        ({}, "`code`"),
        ({"cod": "1"}, "did you mean 'code'?"),
        ({"code": "1", "policy": {"memory_byte": 1}}, "did you mean 'memory_bytes'?"),
        ({"code": "1", "template": "x"}, "template is one of bare, numeric, full, not 'x'"),
    ]:
        done = api.post("/api/v1/run", json=body)
        assert (done.status_code, words in done.json()["detail"]) == (400, True), done.json()
    assert api.post("/api/v1/run", content=b"[" * 100_000).status_code == 400
    assert api.get("/api/v1/run").status_code == 405
    assert api.get("/api/v1/nothing").status_code == 404


def test_sessions_end_when_their_time_is_over(api):
    session = api.session(idle_seconds=0.05)
    waited = threading.Event()
    waited.wait(0.1)
    api.service.call(api.service.service.sessions.sweep)
    gone = api.get(session)
    assert (gone.status_code, gone.json()["code"]) == (410, "session_lost")
    assert "idle for too long" in gone.json()["detail"]


def test_tools_of_a_live_session_are_exchanged_and_wrong_ones_change_nothing(api):
    session = api.session(template="bare", tools=[{"name": "old"}])
    for tools, status in (
        ([{"name": "new"}], 204), ([{"name": "print"}], 400), ([{}], 400), (["x"], 400),
        ([{"name": f"t{n}"} for n in range(501)], 400),
    ):  # fmt: skip
        assert api.put(f"{session}/tools", json={"tools": tools}).status_code == status
    (twin,) = api.post(f"{session}/fork", json={}).json()
    for path in (session, f"/api/v1/sessions/{twin['session']['id']}"):
        found = api.run(path, "callable(new), 'old' in globals()")
        assert found["value_repr"] == "(True, False)"


@pytest.mark.parametrize(
    ("operation", "body", "status", "error"),
    [
        ("read", {"path": "nope"}, 404, "file_not_found"),
        ("read_raw", {"path": "nope"}, 404, "file_not_found"),
        ("stat", {"path": "nope"}, 404, "file_not_found"),
        ("delete", {"path": "nope"}, 404, "file_not_found"),
        ("move", {"path": "nope", "target": "b"}, 404, "file_not_found"),
        ("edit", {"path": "nope", "old": "a", "new": "b"}, 404, "file_not_found"),
        ("edit", {"path": "a.txt", "old": "absent", "new": "b"}, 422, "not_edited"),
        ("edit", {"path": "a.txt", "old": "o", "new": "b"}, 422, "not_edited"),
        ("write", {"path": "a.txt", "content": ""}, 409, "file_exists"),
        ("read", {"path": "/proc/1/../../a\0b"}, 422, "invalid_path"),
        ("delete", {"path": "folder"}, 422, "is_directory"),
    ],
)
def test_a_file_operation_that_fails_is_a_problem_and_not_a_success(
    files_session, operation, body, status, error
):
    api, session = files_session
    done = api.post(f"{session}/files/{operation}", json=body)
    told = done.json()
    assert done.headers["content-type"] == "application/problem+json"
    assert (done.status_code, told["code"], told["file_error"]) == (status, "file", error)
    assert not told["detail"].startswith("Error: ")
    assert api.post(f"{session}/files/{operation}?raw=1", json=body).status_code == 200


def test_file_operations_answer_with_labelled_objects_as_the_document_says(files_session):
    api, session = files_session

    def ask(operation, **body):
        done = api.post(f"{session}/files/{operation}", json=body)
        assert done.status_code == 200, done.text
        return done.json()

    entry = ask("stat", path="a.txt")
    assert (entry["path"], entry["type"], entry["size"]) == ("a.txt", "file", 8)
    listed = ask("ls")
    assert listed == api.get(f"{session}/files").json()
    assert [one["path"] for one in listed["entries"]] == ["a.txt", "folder", "odd\udcff"]
    assert ask("glob", pattern="*.txt")["entries"] == [entry]
    (match,) = ask("grep", pattern="two")["matches"]
    assert match == {"path": "a.txt", "line": 2, "text": "two"}
    assert ask("read", path="a.txt") == {"text": "     1\tone\n     2\ttwo"}
    assert ask("read", path="a.txt", offset=1, limit=1) == {"text": "     2\ttwo"}
    past = api.post(f"{session}/files/read", json={"path": "a.txt", "offset": 9})
    assert (past.status_code, past.json()["code"]) == (416, "range")
    assert ask("read_raw", path="a.txt")["content"] == ["one", "two", ""]
    assert ask("edit", path="a.txt", old="one", new="1") == {"path": "a.txt", "occurrences": 1}
    assert ask("move", path="a.txt", target="b.txt") == {"path": "b.txt"}
    assert ask("delete", path="b.txt") == {"path": "b.txt"}
    assert ask("write", path="Error: File", content="Error: x") == {"path": "Error: File"}
    assert ask("read", path="Error: File") == {"text": "     1\tError: x"}
    assert api.post(f"{session}/files/nope", json={}).status_code == 404


def test_the_openapi_document_has_the_body_and_the_answer_of_each_file_operation(api):
    document = api.get("/openapi.json").json()
    prefix = "/api/v1/sessions/{session}/files/"
    for name in OPERATIONS:
        found = document["paths"][prefix + name]["post"]
        for part in (found["requestBody"], found["responses"]["200"]):
            shape = part["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert "properties" in document["components"]["schemas"][shape], name
    read = document["components"]["schemas"]["ReadFile"]
    assert read["properties"]["limit"] == {"type": "integer", "default": 2000}
    assert read["required"] == []


def test_code_that_does_not_compile_is_told_with_its_line_and_why(api):
    session = api.session()

    def ask(code):
        return api.post(f"{session}/validate", json={"code": code}).json()

    assert ask("x = 1\n!ls\nawait y") == {"valid": True}
    wrong = ask("x = 1\nfor")
    assert (wrong["valid"], wrong["line"], wrong["message"]) == (False, 2, "invalid syntax")
    null = ask("x = 'a\0'")
    assert not null["valid"]
    assert null["message"]


@pytest.fixture
def files_session(api):
    session = api.session()
    api.run(session, "import os\nos.mkdir('folder')\nopen('a.txt', 'w').write('one\\ntwo\\n')")
    api.run(session, "open(b'odd\\xff', 'w').close()")
    return api, session

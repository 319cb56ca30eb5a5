"""Attacks of tests/escape/attacks.jsonl whose layer is `service`: requests that must not work."""

from __future__ import annotations

import concurrent.futures
import pickle

import pytest


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://localhost:8437"])
def test_a_web_page_cannot_run_code(api, origin):
    headers = {"content-type": "text/plain", "origin": origin}
    done = api.post("/api/v1/run", content=b'{"code":"1"}', headers=headers)
    assert (done.status_code, done.json()["code"]) == (403, "origin")
    assert not any(name.startswith("access-control") for name in done.headers)


@pytest.mark.parametrize(
    "ident",
    ["../../etc", "..%2f..%2fx", "%2fabs", "a%2fb", "x" * 5000, "a%00b", "-rf", "a%0ab"],
)
def test_an_id_that_is_a_path_leads_nowhere(api, ident):
    assert api.get(f"/api/v1/sessions/{ident}").status_code in (403, 404, 405)
    assert api.get(f"/api/v1/states/{ident}").status_code in (403, 404, 405)


def test_names_of_files_stay_in_the_session(api, service):
    session = api.session()
    before = sorted(path.name for path in service.settings.folder.iterdir())
    for name in (
        "../x",
        "/etc/x",
        "a/../../x",
        "a%00b",
        ".",
        "..",
        "x" * 300,
        "%c0%ae%c0%ae/x",
        "a\\..\\b",
    ):
        done = api.put(f"{session}/files/content?path={name}", content=b"x")
        assert done.status_code in (204, 403, 404, 422), (name, done.text)
    assert sorted(path.name for path in service.settings.folder.iterdir()) == before
    api.run(session, "open('a\\r\\nSet-Cookie: x=1', 'w').write('x')")
    found = api.get(f"{session}/files/content?path=a%0d%0aSet-Cookie:%20x=1")
    assert (found.status_code, "set-cookie" in found.headers) == (200, False)


def test_a_forged_or_changed_state_is_refused(api):
    class Payload:
        def __reduce__(self):
            return print, ("PWNED",)

    session = api.session()
    api.run(session, "x = 1")
    made = api.post(f"{session}/save").json()["id"]
    blob = api.get(f"/api/v1/states/{made}").content
    for bad in (pickle.dumps(Payload()), blob[:-1] + bytes([blob[-1] ^ 1])):
        done = api.post("/api/v1/states", content=bad)
        assert (done.status_code, done.json()["code"]) == (422, "state")
    kept = api.post("/api/v1/states", content=blob).json()["id"]
    assert api.post("/api/v1/sessions", json={"state": kept}).status_code == 201


def test_errors_tell_nothing_of_the_machine(api, service):
    texts = [
        api.post("/api/v1/run", content=b"{").text,
        api.post("/api/v1/run", content=b"[" * 1_000_000).text,
        api.get("/nope").text,
        api.post("/api/v1/sessions", json={"state": "sta_x"}).text,
    ]
    for text in texts:
        assert str(service.settings.folder) not in text
        assert "Traceback" not in text
        assert ".py" not in text


def test_cells_of_one_session_run_in_turn_and_see_their_own_output(api):
    session = api.session()

    def run(number):
        return api.run(session, f"import time; time.sleep(0.01); print({number})")["stdout"]

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(run, range(8))) == [f"{n}\n" for n in range(8)]


def test_a_session_that_is_deleted_ends_what_runs_in_it(api, service):
    session = api.session()
    started = api.post(
        f"{session}/executions", json={"code": "import time; time.sleep(60)", "detach": True}
    )
    path = f"/api/v1/executions/{started.json()['id']}"
    with api.stream("GET", f"{path}/events") as stream:
        for line in stream.iter_lines():
            if '"started"' in line:
                assert api.delete(session).status_code == 204
    assert api.get(path).json()["kind"] == "cancelled"


def test_loader_variables_are_set_inside_the_sandbox_alone(api):
    for name in ("LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV"):
        done = api.post("/api/v1/run", json={"code": "1 + 1", "env": {name: "/tmp/x"}})
        assert (done.status_code, done.json()["value"]) == (200, 2)
    for name in ("A=B", "A\0", ""):
        assert api.post("/api/v1/run", json={"code": "1", "env": {name: "x"}}).status_code == 400


def test_a_check_of_code_runs_nothing(api):
    session = api.session()
    code = "@exec\ndef f(x=open('made', 'w')): pass"
    assert api.post(f"{session}/validate", json={"code": code}).json() == {"valid": True}
    assert api.get(f"{session}/files").json()["entries"] == []
    for bomb in ("-" * 100_000 + "1", "(" * 5000, "1" + "+1" * 100_000, "lambda: " * 50_000 + "1"):
        assert api.post(f"{session}/validate", json={"code": bomb}).status_code == 200

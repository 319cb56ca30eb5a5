"""What the console reads: figures of sessions, cells, fork trees, contexts, runs, the overview."""

from __future__ import annotations

import json
import threading

from clients import Api
from own_service import OwnService

from atoll.agent.trajectory import (
    CodeRan,
    FinalGiven,
    ModelAnswered,
    ModelAsked,
    RunEnded,
    RunStarted,
)
from atoll.agent.trajectory.events import to_dict

RUN = [
    RunStarted(id="e1", run="r", question="How many?", model="m", context={"length": 9}),
    ModelAsked(id="e2", run="r", call="c1", model="m", elapsed_ms=1),
    ModelAnswered(id="e3", run="r", call="c1", text="look", usd=0.25, elapsed_ms=5),
    CodeRan(id="e4", run="r", turn=1, code="1", observation="<b>1</b>", elapsed_ms=9),
    FinalGiven(id="e5", run="r", how="FINAL", text="Three", coverage={"map": "#.", "length": 9}),
    RunEnded(id="e6", run="r", outcome="answered", usd=0.25, calls=1, elapsed_ms=12),
]
LINES = [json.dumps(to_dict(one)).encode() + b"\n" for one in RUN]


def test_a_session_tells_what_it_uses(api: Api) -> None:
    at = api.session(context={"text": "x" * 70_000})
    before = api.get(at).json()
    api.run(at, "held = bytearray(64 << 20)\nopen('file', 'wb').write(b'1' * (8 << 20))")
    after = api.get(at).json()
    assert after["usage"]["memory_bytes"] > before["usage"]["memory_bytes"] + (60 << 20)
    assert after["usage"]["peak_memory_bytes"] >= after["usage"]["memory_bytes"]
    api.run(at, "del held")
    freed = api.get(at).json()["usage"]
    assert freed["memory_bytes"] + (50 << 20) < freed["peak_memory_bytes"]
    assert after["usage"]["disk_bytes"] >= before["usage"]["disk_bytes"] + (8 << 20)
    assert after["usage"]["processes"] is None or after["usage"]["processes"] >= 1
    assert after["context"] == {"id": None, "length": 70_000}
    assert 0 <= after["idle_seconds_now"] < 60
    (listed,) = api.get("/api/v1/sessions?state=running").json()["items"]
    assert listed["usage"]["disk_bytes"] == after["usage"]["disk_bytes"]
    assert api.get("/api/v1/sessions?state=paused").json()["items"] == []


def test_cells_can_be_read_again_and_a_fork_begins_with_its_parents(api: Api) -> None:
    at = api.session()
    api.run(at, "print('one')")
    api.post(f"{at}/shell", json={"command": "echo two"})
    api.run(at, "print('3' * 200_000)")
    (fork,) = api.post(f"{at}/fork", json={}).json()
    api.run(f"/api/v1/sessions/{fork['session']['id']}", "4")
    cells = api.get(f"{at}/executions").json()["items"]
    assert [(c["n"], c["verb"], c["done"]) for c in cells] == [
        (1, "execute", True), (2, "shell", True), (3, "execute", True),
    ]  # fmt: skip
    assert cells[0]["result"]["stdout"] == "one\n"
    assert cells[1]["result"]["output"] == "two\n"
    long = cells[2]["result"]
    assert long["truncated"]
    assert 60_000 < len(long["stdout"]) < 70_000
    page = api.get(f"/api/v1/sessions/{fork['session']['id']}/executions?after=2&limit=1").json()
    assert ([c["n"] for c in page["items"]], page["next"], page["begins_at"]) == ([3], 3, 4)


def test_a_cell_that_runs_is_in_the_history_with_its_events(api: Api) -> None:
    at = api.session()
    body = {"code": "import time\nprint('begun', flush=True)\ntime.sleep(60)", "detach": True}
    ident = api.post(f"{at}/executions", json=body).json()["id"]
    (cell,) = api.get(f"{at}/executions").json()["items"]
    assert (cell["id"], cell["done"], cell["result"]) == (ident, False, None)
    with api.stream("GET", cell["events"]) as stream:
        kinds = []
        for line in stream.iter_lines():
            kinds.append(json.loads(line)["type"])
            if kinds[-1] == "stdout":
                break
    api.post(f"/api/v1/executions/{ident}/cancel")
    api.get(f"/api/v1/executions/{ident}/events")
    (cell,) = api.get(f"{at}/executions").json()["items"]
    assert cell["result"]["kind"] == "cancelled"


def test_the_fork_tree_has_sessions_marks_and_what_has_ended(api: Api, other: Api) -> None:
    at = api.session()
    root = at.rpartition("/")[2]
    mark = api.post(f"{at}/checkpoints", json={"name": "start"}).json()["id"]
    (child,) = api.post(f"{at}/fork", json={"name": "left"}).json()
    left = child["session"]["id"]
    (inner,) = api.post(f"/api/v1/sessions/{left}/fork", json={}).json()
    api.post(f"{at}/rollback", json={"mark": mark})
    api.delete(f"/api/v1/sessions/{left}")
    deep = inner["session"]["id"]
    tree = api.get(f"/api/v1/sessions/{deep}/tree").json()
    found = {one["id"]: one for one in tree["nodes"]}
    assert tree["root"] == root
    assert {n: one["parent"] for n, one in found.items()} == {
        root: None, mark: root, left: root, deep: left,
    }  # fmt: skip
    assert (found[mark]["kind"], found[mark]["name"], found[mark]["rolled_back"]) == (
        "mark", "start", True,
    )  # fmt: skip
    assert (found[left]["state"], found[left]["reason"]) == ("ended", "deleted")
    assert [n for n, one in found.items() if one["current"]] == [deep]
    assert other.get(f"/api/v1/sessions/{deep}/tree").status_code == 404


def test_a_context_is_read_searched_and_its_map_tells_what_was_seen(api: Api, other: Api) -> None:
    text = "# One\n" + "filler\n" * 5_000 + "## Whales\nthree whales\n"
    made = api.post("/api/v1/contexts", content=text.encode()).json()
    at = f"/api/v1/contexts/{made['id']}"
    assert [one["id"] for one in api.get("/api/v1/contexts").json()["items"]] == [made["id"]]
    assert set(api.get(f"{at}/coverage").json()["map"]) == {"."}
    part = api.get(f"{at}/text?start=2&end=5").json()
    assert part == {"start": 2, "end": 5, "length": len(text), "text": "One"}
    found = api.post(f"{at}/search", json={"pattern": "wh.les$"}).json()
    assert [hit["text"] for hit in found["hits"]] == ["three whales"]
    assert text[found["hits"][0]["start"] : found["hits"][0]["end"]] == "whales"
    seen = api.get(f"{at}/coverage").json()
    assert (seen["map"][0], seen["map"][30], seen["map"][-1]) == ("#", "-", "#")
    assert seen["ranges"]["scanned"] == [[0, len(text)]]
    titles = [one["title"] for one in api.get(f"{at}/sections").json()["items"]]
    assert titles == ["One", "Whales"]
    bad = api.post(f"{at}/search", json={"pattern": "("})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid")
    for path in ("text", "sections", "coverage"):
        assert other.get(f"{at}/{path}").status_code == 404
    assert other.post(f"{at}/search", json={"pattern": "x"}).status_code == 404


def test_a_run_elsewhere_is_seen_while_it_is_reported(api: Api, other: Api) -> None:
    sent = threading.Event()

    def lines() -> object:
        yield LINES[0] + LINES[1][:10]
        assert sent.wait(30)
        yield LINES[1][10:] + b"".join(LINES[2:])

    uploading = threading.Thread(
        target=api.post, args=("/api/v1/runs/upload",), kwargs={"content": lines()}
    )
    uploading.start()
    with Api(api.service, api.headers["authorization"].partition(" ")[2]) as watcher:
        while not (items := watcher.get("/api/v1/runs").json()["items"]) or not items[0]["events"]:
            pass
        assert (items[0]["state"], items[0]["question"]) == ("running", "How many?")
        at = f"/api/v1/runs/{items[0]['id']}"
        with watcher.stream("GET", f"{at}/events") as stream:
            incoming = stream.iter_lines()
            assert json.loads(next(incoming))["event"]["event"] == "run_started"
            sent.set()
            rest = [json.loads(line) for line in incoming]
        uploading.join(30)
        assert [one.get("seq") for one in rest] == [2, 3, 4, 5, 6, None]
        assert rest[-1]["run"]["outcome"] == "answered"
        run = watcher.get(at).json()
        assert (run["answer"], run["turns"], run["usd"], run["state"]) == (
            "Three",
            1,
            0.25,
            "ended",
        )
        (root,) = watcher.get(f"{at}/tree").json()["nodes"]
        assert [one["event"]["event"] for one in root["children"]] == [
            "model_asked", "code_ran", "final_given",
        ]  # fmt: skip
        assert root["totals"]["usd"] == 0.25
        assert watcher.get(f"{at}/trajectory.jsonl").content.count(b"\n") == 6
        resumed = watcher.get(f"{at}/events?after=5").text.splitlines()
        assert [json.loads(line)["type"] for line in resumed] == ["event", "end"]
        assert other.get(at).status_code == 404
        assert other.get("/api/v1/runs").json()["items"] == []
        assert watcher.delete(at).status_code == 204
        assert watcher.get(at).status_code == 404


def test_a_report_that_breaks_off_or_is_no_trajectory_ends_the_run(api: Api) -> None:
    refused = api.post("/api/v1/runs/upload", content=LINES[0] + b"[1]\n")
    assert refused.status_code == 400
    (run,) = api.get("/api/v1/runs").json()["items"]
    assert (run["state"], run["outcome"]) == ("ended", "cut off")


def test_a_run_needs_a_model_that_the_operator_offers(api: Api) -> None:
    refused = api.post("/api/v1/runs", json={"question": "?", "model": "some-model"})
    assert (refused.status_code, refused.json()["code"]) == (403, "model")
    assert "--model" in refused.json()["detail"]


def test_figures_use_and_who_asks(api: Api, service: OwnService) -> None:
    at = api.session()
    api.run(at, "1")
    who = api.get("/api/v1/whoami").json()
    assert who["use"]["sessions"] == 1
    stats = api.get("/api/v1/stats").json()
    assert stats["outcomes"]["ok"] >= 1
    assert stats["sessions"] >= 1
    days = api.get("/api/v1/usage").json()["items"]
    assert any(day["key"] == who["key"] and day["executions"] == 1 for day in days)
    (own,) = [one for one in api.get("/api/v1/keys").json()["items"] if one["id"] == who["key"]]
    assert own["use"]["sessions"] == 1
    with Api(service, service.add_key(tenant="t", scopes=("sessions",))) as small:
        assert small.get("/api/v1/stats").status_code == 403
        assert all(day["tenant"] == "t" for day in small.get("/api/v1/usage").json()["items"])


def test_the_overview_tells_of_sessions_as_they_come_and_go(api: Api) -> None:
    headers = {"accept": "text/event-stream"}
    with (
        Api(api.service, api.headers["authorization"].partition(" ")[2]) as watcher,
        watcher.stream("GET", "/api/v1/overview/events", headers=headers) as stream,
    ):
        told = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        assert next(told)["type"] == "stats"
        at = api.session()
        ident = at.rpartition("/")[2]
        came = next(one for one in told if one["type"] == "sessions")
        assert [one["id"] for one in came["items"]] == [ident]
        api.delete(at)
        assert next(one for one in told if one["type"] == "sessions" and one["gone"])["gone"] == [
            ident
        ]


def test_a_drained_service_reads_but_takes_no_new_work(api: Api) -> None:
    at = api.session()
    assert api.post("/api/v1/drain").json()["draining"]
    try:
        assert api.post(f"{at}/executions", json={"code": "1"}).status_code == 503
        assert api.get("/ready").status_code == 503
        assert api.get(at).status_code == 200
    finally:
        assert api.request("DELETE", "/api/v1/drain").json() == {"draining": False}
    assert api.run(at, "1 + 1")["value"] == 2


def test_the_list_of_sessions_tells_their_disk_without_a_look_at_each(api, service):
    session = api.session()
    api.run(session, "open('large', 'wb').write(bytes(1 << 20))")
    service.call(service.service.sessions.sweep)
    ident = session.rpartition("/")[2]
    (found,) = [one for one in api.get("/api/v1/sessions").json()["items"] if one["id"] == ident]
    assert found["usage"]["disk_bytes"] >= 1 << 20

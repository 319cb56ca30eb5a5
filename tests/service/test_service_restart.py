"""Sessions over a restart of the service: saved at its end, there again at its start, or named."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import Api
from own_service import OwnService

from atoll.errors import StateError
from atoll.service.access.keys import SCOPES
from atoll.service.telemetry import logs


class Restartable:
    """A service in a folder of its own, and a client of it that outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, ""
        self.service: OwnService
        self.api: Api
        self.start()

    def start(self) -> None:
        self.service = OwnService(self.folder, tier="bare")
        self.service.start()
        self.key = self.key or self.service.add_key(tenant="acme", scopes=SCOPES)
        self.api = Api(self.service, self.key)

    def stop(self) -> None:
        self.api.close()
        self.service.stop()

    def restart(self) -> Api:
        self.stop()
        self.start()
        return self.api


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Restartable]:
    made = Restartable(tmp_path / "folder")
    yield made
    made.stop()


@pytest.mark.spec("R2.17", "R2.8")
def test_without_repl_mode_there_are_no_warm_interpreters(tmp_path, monkeypatch):
    monkeypatch.setenv("REPL_ENABLED", "false")
    served = Restartable(tmp_path / "folder")
    try:
        session = served.api.session()
        assert "REPL_ENABLED" in served.api.run(session, "x = 41")["cold_start"]
        assert served.restart().run(session, "x + 1")["value"] == 42
    finally:
        served.stop()


def test_sessions_go_on_after_a_restart_with_all_they_had(served: Restartable) -> None:
    api = served.api
    text = api.post("/api/v1/contexts", params={"name": "a"}, content=b"uploaded").json()["id"]
    plain = api.session(metadata={"name": "root"}, context={"text": "given"}, idle_seconds=600)
    api.run(plain, "x = [41]\ndef f(): return x[0] + 1\nopen('a.txt', 'w').write('kept')")
    api.post(f"{plain}/checkpoints", json={"name": "mark"})
    twin = api.post(f"{plain}/fork", json={"name": "twin"}).json()[0]["session"]["id"]
    frozen = api.session(context={"id": text}, tools=[{"name": "ask"}])
    api.run(frozen, "y = 7")
    api.post(f"{frozen}/pause")
    before = api.get(plain).json()
    cells = api.get(f"{plain}/executions").json()
    cells_of_twin = api.get(f"/api/v1/sessions/{twin}/executions").json()

    api = served.restart()
    again = api.get(plain).json()
    assert (again["state"], again["paused_as"]) == ("paused", "saved")
    for name in ("created_at", "expires_at", "metadata", "policy", "executions", "isolation"):
        assert again[name] == before[name], name
    assert api.get(f"{plain}/executions").json() == cells
    assert api.get(f"/api/v1/sessions/{twin}/executions").json() == cells_of_twin
    assert again["marks"] == []  # a saved state does not hold them
    assert again["children"] == [twin]
    assert api.run(plain, "[f(), context, open('a.txt').read()]")["value"] == [42, "given", "kept"]
    assert api.run(f"/api/v1/sessions/{twin}", "f()")["value"] == 42
    assert api.run(frozen, "[y, context[:], callable(ask)]")["value"] == [7, "uploaded", True]
    assert api.get(f"{plain}/executions").json()["items"][-1]["n"] == 2  # the numbers go on
    assert api.delete(plain).status_code == 204

    api = served.restart()  # those that were used since, too; not the one that was ended
    assert api.get(plain).status_code == 404
    assert api.run(frozen, "y += 1\ny")["value"] == 8
    assert [one["id"] for one in api.get("/api/v1/sessions").json()["items"]] == [
        twin,
        frozen.rpartition("/")[2],
    ]


def test_what_cannot_be_saved_is_named_and_another_tenant_sees_nothing(
    served: Restartable, caplog: pytest.LogCaptureFixture
) -> None:
    api = served.api
    session = api.session()
    api.run(session, "numbers = globals()['x\\n\\x1b[2Jforged'] = (n for n in range(9))")
    busy = api.session()
    started = api.post(f"{busy}/processes", json={"command": ["sleep", "1000"]})
    assert started.status_code == 201, started.text
    saved = api.session()
    done = api.post(
        f"{saved}/processes",
        json={"command": ["true"]},
        headers={"accept": "application/x-ndjson"},
    )
    assert '"exited"' in done.text
    with caplog.at_level(logging.INFO, "atoll.service"):
        api = served.restart()
    # A guest chose a name that would begin a line of its own.
    assert all(logs.TextFormatter().format(one).isprintable() for one in caplog.records)
    told = [one.getMessage() for one in caplog.records]
    ident = session.rpartition("/")[2]
    (line,) = [one for one in told if one.startswith(f"session {ident} has ended: ")]
    assert "it could not be saved because of " in line
    assert "numbers" in line
    assert "forged" in line
    assert any("processes run beside its cells" in one for one in told)
    assert "saved 1 session, to go on when the service starts again" in told
    assert "going on with 1 session, saved when it stopped" in told
    gone = api.get(session)
    assert gone.status_code == 410
    assert "numbers" in gone.json()["detail"]
    assert gone.json()["retryable"] is False  # it never goes on: another call cannot help
    with Api(served.service, served.service.add_key(tenant="other", scopes=SCOPES)) as other:
        assert other.get(saved).status_code == 404
        assert other.get("/api/v1/sessions").json()["items"] == []


@pytest.mark.parametrize("how", ["urgent", "expired", "damaged", "no state"])
def test_a_session_that_cannot_come_back_is_gone_and_the_service_starts(
    served: Restartable, how: str
) -> None:
    session = served.api.session()
    served.service.service.urgent = how == "urgent"
    served.stop()
    with sqlite3.connect(served.folder / "service.sqlite3") as db:
        rows = db.execute("SELECT id, record FROM saved_sessions").fetchall()
        assert len(rows) == (how != "urgent")
        for ident, record in rows:
            changed = {"expired": {"created": 1.0}, "damaged": {"config": 3}}.get(how, {})
            other = json.dumps({**json.loads(record), **changed})
            db.execute("UPDATE saved_sessions SET record = ? WHERE id = ?", (other, ident))
    db.close()
    if how == "no state":
        (served.folder / "paused.sqlite3").unlink()
    served.start()
    assert served.api.get(session).status_code == 410
    assert served.api.get("/api/v1/sessions").json()["items"] == []
    assert served.service.service.database.all("SELECT * FROM saved_sessions") == []


def test_a_full_disk_at_the_end_loses_sessions_by_name_and_the_service_stops(
    served: Restartable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = served.api.session()

    def full(*_args: object) -> None:
        raise StateError("the states cannot be used: database or disk is full")

    monkeypatch.setattr(served.service.service._store, "put", full)
    with caplog.at_level(logging.INFO, "atoll.service"):
        api = served.restart()
    assert any("disk is full" in one.getMessage() for one in caplog.records)
    assert api.get(session).status_code == 410


@pytest.mark.parametrize("cells", [b"no json", b"[1, 2]", b"[1, 2, [3]]", b'[1, 2, [{"n": 1}]]'])
def test_cells_that_are_damaged_do_not_keep_a_session_from_going_on(
    served: Restartable, cells: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    api = served.api
    session = api.session()
    api.run(session, "x = 1")
    served.service.service.sessions.all()[0].history.to_bytes = lambda: cells  # type: ignore[method-assign]
    api = served.restart()
    assert api.get(f"{session}/executions").json()["items"] == []
    assert api.run(session, "x")["value"] == 1
    assert "goes on without its cells" in caplog.text

"""What an operator reads: log lines with the request's id and trace, counters of refusals and pools."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from clients import Api
from own_service import OwnService
from prometheus_client.parser import text_string_to_metric_families

from atoll.errors import ConfigError
from atoll.service.access.keys import SCOPES
from atoll.service.settings import ServiceSettings
from atoll.service.storage import restart
from atoll.service.telemetry import logs

LOGGERS = ("atoll.service", "atoll.service.requests")
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture):
    """Return the lines that were logged so far, as JSON has them."""
    caplog.handler.setFormatter(logs.JsonFormatter())
    caplog.set_level(logging.INFO, "atoll.service")
    return lambda: [json.loads(one) for one in caplog.text.splitlines()]


def test_a_request_is_one_line_with_its_id_and_trace_and_nothing_of_its_body(api, lines):
    sent = {"x-request-id": "mine-1", "traceparent": PARENT}
    done = api.post("/api/v1/run?secret=1", json={"code": "print('private')"}, headers=sent)
    assert done.headers["x-request-id"] == "mine-1"
    line = _line_of("mine-1", lines)
    assert line["trace_id"] == TRACE
    assert (line["method"], line["route"], line["status"]) == ("POST", "/api/v1/run", 200)
    assert line["level"] == "info"
    text = json.dumps(line)
    assert not [one for one in ("private", "secret", api.headers["authorization"]) if one in text]


@pytest.mark.parametrize("given", ["", "x", PARENT.upper(), f"00-{'0' * 32}-b7ad6b7169203331-01",
                                   f"ff-{TRACE}-b7ad6b7169203331-01"])  # fmt: skip
def test_a_trace_that_is_not_one_is_left_out(api, lines, given):
    api.get("/api/v1/whoami", headers={"traceparent": given, "x-request-id": "mine-2"})
    assert "trace_id" not in _line_of("mine-2", lines)


def test_a_fault_in_a_cell_that_runs_on_is_logged_with_the_request_that_began_it(
    api, service, lines, monkeypatch
):
    def fail(*_args, **_options):
        raise ZeroDivisionError

    monkeypatch.setattr(service.service, "ended", fail)
    headers = {"x-request-id": "began-it", "traceparent": PARENT}
    assert api.post("/api/v1/run", json={"code": "1"}, headers=headers).status_code == 500
    (line,) = [one for one in lines() if one["level"] == "error"]
    assert (line["request_id"], line["trace_id"]) == ("began-it", TRACE)
    assert "ZeroDivisionError" in line["exception"]


def test_a_log_line_that_a_client_chose_a_part_of_stays_one_line():
    record = logging.LogRecord("atoll.service", 30, "", 0, "a\nb %s", ("\u2028\x1b[31m",), None)
    assert logs.TextFormatter().format(record).endswith(r"WARNING a\nb \u2028\x1b[31m")
    text = logs.JsonFormatter().format(record)
    assert text.isprintable()
    assert json.loads(text)["message"] == "a\nb \u2028\x1b[31m"


@pytest.mark.parametrize(("form", "requests"), [("text", False), ("json", True)])
def test_good_news_is_info_in_both_forms_and_a_request_is_a_line_in_json_only(
    form, requests, capfd, monkeypatch
):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    levels = {name: logging.getLogger(name).level for name in ("", *LOGGERS)}
    try:
        logs.set_up(form, debug=False)
        restart._log_saved({"ses_1": "", "ses_2": "it could not be saved because of f, gen"})
        if logs.LOG.isEnabledFor(logging.INFO):
            logs.answered("GET", "/health", 200, 0.001, "")
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    told = capfd.readouterr().err
    assert "INFO saved 1 session, to go on when the service starts again" in told or form == "json"
    assert "session ses_2 has ended: it could not be saved because of f, gen" in told
    assert ("/health" in told) is requests


def test_an_unknown_form_of_log_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="log must be one of text, json, not 'xml'"):
        ServiceSettings(folder=tmp_path, log="xml")


def test_refused_credentials_are_counted_by_what_was_wrong_and_clients_are_not_told(service, api):
    def count() -> dict[str, float]:
        return _counter(api, "atoll_auth_failures", "reason")

    revoked, late = (service.add_key(tenant="t", scopes=SCOPES) for _ in range(2))
    service.call(lambda: service.service.keys.revoke(revoked.split("_")[1]))
    query = "UPDATE keys SET expires = 1 WHERE id = ?"
    service.call(lambda: service.service.database.write(query, late.split("_")[1]))
    unknown = f"atl_00000000_{'x' * 43}"
    keys = {"revoked": revoked, "expired": late, "unknown": unknown, "missing": ""}
    before, told = count(), set()
    for key in keys.values():
        with Api(service, key) as client:
            answer = client.get("/api/v1/whoami")
            assert answer.status_code == 401
            told |= {answer.json()["detail"]} if key else set()
    api.get("/api/v1/whoami", headers={"x-api-key": "another"})
    after = count()
    changed = {name: after[name] - before.get(name, 0) for name in after}
    assert {name for name, more in changed.items() if more == 1} >= {*keys, "ambiguous"}
    assert len(told) == 1  # one answer for every key that is not valid


def test_guests_taken_from_the_pool_are_counted_parked_or_new(service: OwnService, api: Api):
    def taken() -> float:
        return sum(_counter(api, "atoll_pool_takes", "warm").values())

    before = taken()
    api.session()
    assert taken() == before + 1
    assert set(_counter(api, "atoll_zygote_restarts", "tier")) == set(service.service.pool_stats())


def _line_of(request_id: str, lines: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the only line of a request; it is written after the client has its answer."""
    end = time.monotonic() + 30
    while not (found := [one for one in lines() if _is_of(one, request_id)]):
        assert time.monotonic() < end, "no line was written"
        time.sleep(0.005)
    (line,) = found
    return line


def _is_of(line: dict[str, Any], request_id: str) -> bool:
    return (line.get("event"), line.get("request_id")) == ("request", request_id)


def _counter(api: Api, name: str, label: str) -> dict[str, float]:
    """Return the values of a counter, summed up by one of its labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(api.get("/metrics").text):
        if family.name == name:
            for one in family.samples:
                if one.name == f"{name}_total":
                    found[one.labels[label]] = found.get(one.labels[label], 0) + one.value
    return found

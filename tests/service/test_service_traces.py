"""Spans that the service sends to an OpenTelemetry collector: a real exporter, a collector of ours."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from clients import Api
from own_service import OwnService

from atoll.errors import ConfigError
from atoll.service.telemetry.tracing import Traces

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is missing")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.spans: list[Any] = []
        self.services: set[str] = set()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, sent: ExportTraceServiceRequest) -> None:
        for resource in sent.resource_spans:
            self.services |= {
                one.value.string_value
                for one in resource.resource.attributes
                if one.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Any]:
        return [one for one in self.spans if one.name == name]


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces"
        self.server.take(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.shutdown()
    made.server_close()


def test_a_request_and_the_phases_of_what_it_ran_are_spans_of_the_callers_trace(
    collector: Collector, tmp_path: Path
) -> None:
    service = OwnService(tmp_path, tier="bare", traces=collector.url)
    service.start()
    with Api(service, service.key) as api:
        headers = {"traceparent": PARENT}
        body = {"code": "print('private')", "files": [{"path": "a", "content_b64": "aGk="}]}
        assert api.post("/api/v1/run", json=body, headers=headers).status_code == 200
        session = api.session()
        api.run(session, "1 + 1")
        assert api.get("/api/v1/sessions/ses_none", headers=headers).status_code == 404
    service.stop()  # which sends all of them

    assert collector.services == {"atoll"}
    (request,) = collector.named("POST /api/v1/run")
    execution = next(
        one for one in collector.named("execute_tool run_python") if one.trace_id.hex() == TRACE
    )
    assert request.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == "b7ad6b7169203331"
    assert execution.parent_span_id == request.span_id
    facts = {one.key: one.value.string_value for one in execution.attributes}
    assert facts["gen_ai.operation.name"] == "execute_tool"
    assert facts["gen_ai.tool.call.id"] == facts["atoll.execution"]
    parts = [one for one in collector.spans if one.parent_span_id == execution.span_id]
    assert [one.name for one in parts] == ["queue", "open", "files", "execute"]
    assert parts[0].start_time_unix_nano == execution.start_time_unix_nano
    assert parts[-1].end_time_unix_nano == execution.end_time_unix_nano
    for before, after in itertools.pairwise(parts):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    (refused,) = collector.named("GET /api/v1/sessions/{session}")
    known = {one.key: one.value for one in refused.attributes}
    assert known["http.response.status_code"].int_value == 404
    assert known["error.type"].string_value == "not_found"
    cells = [one for one in collector.named("execute_tool run_python") if one is not execution]
    assert session.rpartition("/")[2] in str(cells[0].attributes)
    assert cells[0].trace_id.hex() != TRACE  # a request that names no trace begins one
    told = str(collector.spans)
    assert not [one for one in ("private", service.key, "print") if one in told]


def test_a_collector_that_is_not_there_costs_no_request_and_does_not_hold_up_the_end(
    tmp_path: Path,
) -> None:
    service = OwnService(tmp_path, tier="bare", traces="http://127.0.0.1:9")
    service.start()
    with Api(service, service.key) as api:
        assert api.post("/api/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"
    service.stop()
    assert not [one for one in threading.enumerate() if "BatchSpan" in one.name]


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://127.0.0.1:4317", "http://", "x"])
def test_a_collector_without_an_http_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:4318"):
        Traces(url)


def test_without_a_collector_nothing_is_imported_and_the_callers_trace_is_passed_on() -> None:
    assert Traces("").parent(PARENT) == PARENT

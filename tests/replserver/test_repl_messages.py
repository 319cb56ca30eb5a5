"""Requests and responses as JSON, and errors in the words that clients match."""

from __future__ import annotations

import json

import pytest

from atoll import ConfigError, Display, SandboxResult, StateError
from atoll.replserver import runner
from atoll.replserver.messages import REPLRequest, REPLResponse
from atoll.types import Outcome


@pytest.mark.spec("R2.3")
def test_a_request_there_and_back():
    request = REPLRequest(code="é", state=b"\0\xff", capture_state=True, timeout=2.5)
    text = json.dumps(request.as_json()).encode()
    assert json.loads(text)["state"] == "AP8="
    assert REPLRequest.from_json(text) == request


@pytest.mark.spec("R2.3")
def test_only_the_code_is_required():
    assert REPLRequest.from_json(b'{"code": "1", "state": null}') == REPLRequest(code="1")
    assert REPLRequest.from_json(b'{"code": "1", "state": "", "more": 1}') == REPLRequest(code="1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "must be a dict"),
        (b"{}", "needs the field 'code'"),
        (b'{"code": 1}', "code must be a str"),
        (b'{"code": "", "capture_state": "yes"}', "capture_state must be a bool"),
        (b'{"code": "", "timeout": -1}', "timeout must be positive"),
        (b'{"code": "", "timeout": NaN}', "timeout must be positive"),
    ],
)
def test_a_bad_request_is_refused_with_a_reason(text, why):
    with pytest.raises(ConfigError, match=why):
        REPLRequest.from_json(text)


@pytest.mark.parametrize("state", ["%%%", 7, "QQ", ["QQ=="]])
def test_a_state_that_is_no_base64(state):
    with pytest.raises(StateError, match="not valid base64"):
        REPLRequest.from_json(json.dumps({"code": "", "state": state}).encode())


@pytest.mark.spec("R2.3")
def test_a_response_there_and_back():
    response = REPLResponse(
        stdout="o",
        files=("out.png",),
        state=b"s",
        left_out={"f": "a file"},
        displays=(Display(media_type="image/png", data=b"\x89"),),
    )
    text = json.dumps(response.as_json()).encode()
    fields = {"stdout", "stderr", "exit_code", "state", "files", "error"}
    assert fields <= json.loads(text).keys()
    assert REPLResponse.from_json(text) == response


def test_a_response_of_a_server_that_knows_the_six_fields_only():
    message = dict.fromkeys(("stdout", "stderr"), "") | {"exit_code": 0, "files": ["a"]}
    response = REPLResponse.from_json(json.dumps(message | {"state": None, "error": None}).encode())
    assert (response.files, response.state, response.kind) == (("a",), None, "ok")


@pytest.mark.parametrize("text", [b"{}", b"[]", b"no", b'{"state": null, "files": 3}'])
def test_what_is_no_response_is_refused(text):
    with pytest.raises((LookupError, TypeError, ValueError)):
        REPLResponse.from_json(text)


@pytest.mark.spec("R2.12")
def test_only_places_in_a_traceback_are_renamed():
    stderr = 'I print "<cell 1>"\nTraceback\n  File "<cell 12>", line 3, in f\nValueError: x\n'
    result = SandboxResult(kind=Outcome.ERROR, error="ValueError: x", stderr=stderr)
    assert runner._error_and_stderr(result) == (
        "ValueError: x",
        'I print "<cell 1>"\nTraceback\n  File "<string>", line 3, in f\nValueError: x\n',
    )

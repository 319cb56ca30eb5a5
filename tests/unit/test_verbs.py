"""The table of a session's verbs: what is sent, what is refused, what the documentation says."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import ConfigError
from atoll.sandbox import verbs

DOCS = Path(__file__).parents[2] / "docs" / "protocol.md"


def row(kind: type[verbs.Request]) -> str:
    fields = ", ".join(f"`{name}`" for name, _, _ in kind.shape) or "none"
    effect = "yes" if kind.changes else "no"
    return f"| `{kind.verb}` | {fields} | {kind.answer.described} | {effect} |"


def test_the_documentation_lists_every_verb_as_it_is_declared():
    text = DOCS.read_text()
    missing = [row(kind) for kind in verbs.VERBS.values() if row(kind) not in text]
    assert not missing, "docs/protocol.md lacks:\n" + "\n".join(missing)


@pytest.mark.parametrize(
    "request_",
    [
        verbs.Execute(code="1"),
        verbs.Execute(code="1", timeout_ms=5, key="k", execution="e"),
        verbs.Shell(argv=["ls"], env={"A": "1"}, merge_stderr=False),
        verbs.GetVariable(name="x", plain=True),
        verbs.SetVariable(name="x", value={"$": "bytes", "v": ""}),
        verbs.Rollback(mark="m"),
        verbs.Initialize(context={"value": 1}, keep=True),
    ],
    ids=lambda request: request.verb,
)
def test_a_request_is_read_as_it_was_sent(request_):
    assert type(request_).read({**request_.params(), "session": "1"}) == request_


@pytest.mark.parametrize(
    ("verb", "params", "message"),
    [
        ("execute", {}, "code must be a str, not left out"),
        ("execute", {"code": 1}, "code must be a str, not int"),
        ("execute", {"code": "1", "timeout_ms": "5"}, "timeout_ms must be a number or null"),
        ("execute", {"code": "1", "timeout_ms": True}, "timeout_ms must be a number or null"),
        ("shell", {"argv": "ls"}, "argv must be a list or null, not str"),
        ("folders", {"changing": 1}, "changing must be a bool, not int"),
        ("initialize", {"config": []}, "config must be a dict or null, not list"),
    ],
)
def test_a_field_of_another_type_is_refused(verb, params, message):
    with pytest.raises(ConfigError, match=message):
        verbs.VERBS[verb].read(params)


def test_what_changes_a_session_is_known_by_its_verb():
    changing = {name for name, kind in verbs.VERBS.items() if kind.changes}
    assert changing == {"initialize", "execute", "shell", "set_variable", "rollback"}
    assert verbs.may_change("files", {"operation": "mkdir"})
    assert not verbs.may_change("files", {"operation": "grep"})
    assert not verbs.may_change("no verb", {})


def test_what_may_be_sent_twice_reads_or_has_a_key():
    assert verbs.may_repeat("execute", {"code": "1", "key": "k"})
    assert not verbs.may_repeat("execute", {"code": "1"})
    assert verbs.may_repeat("set_variable", {"name": "x", "value": 1})
    assert not verbs.may_repeat("checkpoint", {})
    for operation in ("write", "edit", "upload", "send", "delete", "move", "mkdir"):
        assert not verbs.may_repeat("files", {"operation": operation})
    assert verbs.may_repeat("files", {"operation": "read"})

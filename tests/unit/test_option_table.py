"""SandboxConfig is the table of options: one that is added there is known everywhere, or refused."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import atoll
from atoll.backends.remote.sandbox import RemoteSandbox
from atoll.config import WAYS, SandboxConfig, options_with
from atoll.factory import merge
from atoll.replserver import executor
from atoll.sandbox.wire import options
from atoll.service.access.keys import Quota
from atoll.service.access.permissions import wanted
from atoll.service.http import bodies
from atoll.service.http.problems import Problem

SAMPLES = {
    "int": 7,
    "int | None": 7,
    "float": 7.0,
    "bool": True,
    "str | None": "full",
    "Sequence[str]": ("duckdb",),
    "Sequence[str] | None": ("a", "b"),
}
"""A value for an option by its type; an option of another type needs a line here."""
TYPES = {field.name: field.type for field in dataclasses.fields(SandboxConfig)}
sent = pytest.mark.parametrize("name", options.SENT)
REFUSED_BY_SERVICE = ("allow_source",)
OF_IMAGES = ("writable_root", "user", "workdir", "entrypoint")
TOLD_TO_REPL_SERVER = ("timeout_ms", "packages", "allow_source", "image", *OF_IMAGES)
NEEDED = {name: {"image": "full"} for name in OF_IMAGES}
"""Other options without which one means nothing."""
PATHS = {"workdir": "/srv"}


def config_with(name):
    return SandboxConfig(**options_with_needed(name))


def options_with_needed(name):
    return {name: PATHS.get(name, SAMPLES[TYPES[name]]), **NEEDED.get(name, {})}


@pytest.mark.parametrize("field", dataclasses.fields(SandboxConfig), ids=lambda field: field.name)
def test_every_option_says_how_it_travels(field):
    assert sum(way in field.metadata for way in WAYS) == 1


@sent
def test_an_option_is_a_keyword_argument(name):
    config = config_with(name)
    assert getattr(merge(None, options_with_needed(name)), name) == getattr(config, name)


@sent
def test_an_option_reaches_the_daemon(name):
    config = config_with(name)
    crossed = options.from_wire(json.loads(json.dumps(options.to_wire(config))))
    assert getattr(crossed, name) == getattr(config, name)
    assert getattr(crossed, name) != getattr(SandboxConfig(), name)


@sent
async def test_an_option_reaches_the_service_or_is_refused(name):
    config, asked = config_with(name), {}

    async def call(_method, _path, body):
        asked.update(body)
        return {}

    await RemoteSandbox(config)._create(SimpleNamespace(call=call), None)
    body = msgspec.convert(json.loads(json.dumps(asked)), bodies.NewSession)
    settings: Any = SimpleNamespace(
        session_packages=("*",), session_images=("*",), session_hosts=(), max_output_bytes=8 << 20
    )
    if name in REFUSED_BY_SERVICE:
        with pytest.raises(Problem, match=name):
            wanted(body, settings)
    else:
        fields = body.fields(Quota(), settings.max_output_bytes) | wanted(body, settings)
        made = SandboxConfig(**fields)
        assert getattr(made, name) == getattr(config, name)


@sent
def test_a_repl_server_is_told_an_option_or_refuses_it(name):
    config = config_with(name)
    if name in TOLD_TO_REPL_SERVER:
        assert executor.arguments(config) != executor.arguments(SandboxConfig())
    else:
        with pytest.raises(atoll.ConfigError, match=name):
            executor.arguments(config)


def test_what_needs_a_form_of_its_own_has_one():
    apart = {"context", "state"}
    """They go beside the configuration, as memory files."""
    assert set(options_with("encoded")) - apart <= options.to_wire(SandboxConfig()).keys()

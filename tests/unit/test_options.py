"""Options of create_sandbox that are given in a way which cannot be meant."""

from __future__ import annotations

import dataclasses

import pytest

import atoll
from atoll import ConfigError, SandboxConfig
from atoll.backends import registry
from atoll.config import BACKENDS
from atoll.factory import merge


@pytest.mark.parametrize("name", ["mounts", "memory_bytes", "max_processes"])
def test_a_limit_that_is_given_as_an_option_is_said_to_be_a_part_of_the_policy(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"write policy=\{{'{name}': \.\.\.\}}"):
        atoll.create_sandbox(**{name: 1})  # type: ignore[arg-type]


def test_an_option_that_is_close_to_a_limit_names_the_field_of_the_policy() -> None:
    with pytest.raises(
        ConfigError, match=r"^unknown option 'memory': write policy=\{'memory_bytes'"
    ):
        atoll.create_sandbox(memory="1G")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^unknown option 'timeout': did you mean 'timeout_ms'"):
        atoll.create_sandbox(timeout=5)  # type: ignore[call-arg]


def test_a_url_or_a_key_means_the_remote_backend_unless_another_is_named() -> None:
    assert SandboxConfig(url="http://127.0.0.1:1").backend == "remote"
    assert SandboxConfig(api_key="atl_x").backend == "remote"
    assert SandboxConfig(url="127.0.0.1:6379", backend="ray").backend == "ray"
    assert SandboxConfig().backend == "auto"


def test_the_environment_names_the_default_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("auto", *registry.names()) == BACKENDS
    monkeypatch.setenv("ATOLL_BACKEND", "restricted")
    with atoll.create_sandbox() as box:
        assert box.backend == "restricted"
    assert atoll.EnvironmentConfig().backend == "restricted"
    assert SandboxConfig(backend="native").backend == "native"
    assert SandboxConfig(url="http://127.0.0.1:1").backend == "remote"
    monkeypatch.setenv("ATOLL_BACKEND", "fog")
    assert SandboxConfig(backend="auto").backend == "auto"
    with pytest.raises(ConfigError, match=r"^ATOLL_BACKEND: unknown backend 'fog': use one of"):
        atoll.create_sandbox()


def test_both_spellings_of_the_timeout_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="are the same limit: give one of them"):
        atoll.create_sandbox(timeout_ms=5, timeout_seconds=5)
    with pytest.raises(ConfigError, match="are the same limit: give one of them"):
        atoll.REPLEnvironment(timeout_ms=5, timeout_seconds=5)
    for milliseconds in (5, SandboxConfig().timeout_ms):
        with pytest.raises(ConfigError, match="are the same limit: give one of them"):
            SandboxConfig(timeout_ms=milliseconds, timeout_seconds=5)
    with pytest.raises(ConfigError, match="are the same limit: give one of them"):
        dataclasses.replace(SandboxConfig(), timeout_ms=5, timeout_seconds=5)
    merged = merge(SandboxConfig(timeout_ms=5_000), {"timeout_seconds": 2})
    assert merged.timeout_ms == 2_000


@pytest.mark.parametrize("kind", [SandboxConfig, atoll.EnvironmentConfig])
def test_the_time_limit_of_another_configuration_can_be_given(kind: type[SandboxConfig]) -> None:
    other = kind(timeout_seconds=2)
    assert kind(timeout_seconds=other.timeout_seconds).timeout_ms == 2_000
    assert merge(None, {"timeout_seconds": other.timeout_seconds}, kind).timeout_ms == 2_000
    assert merge(kind(timeout_ms=5), {"timeout_seconds": other.timeout_seconds}).timeout_ms == 2_000
    assert dataclasses.replace(kind(), timeout_seconds=other.timeout_seconds).timeout_ms == 2_000
    assert dataclasses.replace(other, timeout_ms=5).timeout_seconds == 0.005
    assert dataclasses.replace(other, backend="native").timeout_ms == 2_000
    assert type(kind().timeout_ms) is int
    assert kind().timeout_ms == 600_000


@pytest.mark.parametrize(
    "name", ["timeout_ms", "max_output_length", "max_concurrency", "max_state_bytes"]
)
def test_a_number_that_is_none_is_refused_before_anything_is_started(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a number, not None: leave it out"):
        SandboxConfig(**{name: None})


@pytest.mark.parametrize("name", ["on_stdout", "on_stderr", "on_output"])
def test_a_callback_that_cannot_be_called_is_refused_before_anything_is_printed(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a function, not 5"):
        SandboxConfig(**{name: 5})


def test_a_sandbox_that_was_not_awaited_says_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"async with atoll\.aio.create_sandbox"):
        atoll.aio.create_sandbox().execute("1")  # type: ignore[attr-defined]

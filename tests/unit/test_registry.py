"""Choosing a backend: named ones are never replaced, `auto` never takes a weaker one than asked."""

from __future__ import annotations

import pytest

import atoll
from atoll.backends import registry
from atoll.backends.native import NativePythonSandbox
from atoll.jail.measure import probe
from atoll.policy import Isolation
from atoll.sandbox.availability import Availability


@pytest.fixture
def weak_host(monkeypatch):
    """A host that has told us it has no user namespaces (the answer is made up, nothing else is)."""
    report = probe.HostReport(
        level=Isolation.CONFINED,
        failure="unshare: Operation not permitted",
        landlock=7,
        cgroup_version=None,
        switches_user=False,
    )
    monkeypatch.setattr(probe, "_cached", report)


@pytest.mark.spec("R0.17")
def test_an_unknown_backend_names_the_known_ones():
    with pytest.raises(
        atoll.UnknownBackendError, match="unknown backend 'nativ': use one of 'auto', 'native'"
    ):
        atoll.create_sandbox(backend="nativ")


@pytest.mark.spec("R0.17", "R0.20")
@pytest.mark.parametrize("backend", ["native", "auto"])
def test_native_is_what_you_get_where_a_python_is_found(backend):
    with atoll.create_sandbox(backend=backend) as box:
        assert isinstance(box.inner, NativePythonSandbox)
        assert box.backend == "native"


@pytest.mark.spec("R0.17", "R0.18")
def test_a_missing_interpreter_is_said_clearly():
    with pytest.raises(
        atoll.BackendUnavailableError, match="no Python interpreter '/no/such/python'"
    ):
        atoll.create_sandbox(backend="native", python="/no/such/python")


@pytest.fixture
def no_virtual_backend(monkeypatch):
    """As where neither wasmtime nor Deno is installed."""
    monkeypatch.setattr(registry, "AUTO_ORDER", ("daemon", "native"))


@pytest.mark.spec("R0.17")
def test_a_weaker_host_fails_closed(weak_host, no_virtual_backend):
    with pytest.raises(
        atoll.IsolationError, match="jailed was asked for and only confined can be had"
    ):
        atoll.create_sandbox(backend="native")
    with pytest.raises(atoll.IsolationError, match="no backend offers jailed") as caught:
        atoll.create_sandbox()
    assert "min_isolation='confined'" in str(caught.value)


@pytest.mark.spec("R0.17")
def test_isolation_nobody_offers_is_refused(no_virtual_backend):
    with pytest.raises(atoll.IsolationError, match="no backend offers virtual"):
        atoll.create_sandbox(min_isolation="virtual")
    with pytest.raises(atoll.IsolationError):
        atoll.create_sandbox(backend="native", min_isolation="virtual")


@pytest.mark.spec("R0.17")
def test_a_limit_that_cannot_be_enforced_is_an_error(weak_host, no_virtual_backend):
    with pytest.raises(atoll.LimitUnsupportedError, match="cannot enforce disk_bytes") as caught:
        atoll.create_sandbox(min_isolation="confined")
    assert caught.value.limit == "disk_bytes"


@pytest.mark.spec("R0.17")
@pytest.mark.parametrize(
    ("level", "limits", "refused"),
    [
        (Isolation.JAILED, {"cpu_seconds": 1.0}, "cpu_seconds"),
        (Isolation.CONFINED, {"disk_bytes": None, "max_processes": 4}, "max_processes"),
    ],
)
def test_without_control_groups_what_nothing_counts_is_refused(monkeypatch, level, limits, refused):
    """A child can end uncounted (its parent ignores SIGCHLD); a thread is in no pid namespace."""
    facts = {"failure": "made up", "landlock": 7, "cgroup_version": None, "switches_user": False}
    monkeypatch.setattr(probe, "_cached", probe.HostReport(level=level, **facts))
    policy = atoll.ExecutionPolicy(**limits)
    with pytest.raises(atoll.LimitUnsupportedError, match=f"cannot enforce {refused}") as caught:
        atoll.create_sandbox(backend="native", min_isolation="confined", policy=policy)
    assert caught.value.limit == refused


async def not_usable(config):
    return Availability(usable=False, reason="no luck", hint="Try again.")


@pytest.mark.spec("R0.17")
async def test_auto_goes_on_to_pyodide_where_native_is_not_to_be_had(monkeypatch):
    monkeypatch.setattr(NativePythonSandbox, "availability", not_usable)
    assert (await registry.choose(atoll.SandboxConfig())).backend == "pyodide"
    assert (
        await registry.choose(atoll.SandboxConfig(min_isolation="virtual"))
    ).backend == "pyodide"


@pytest.mark.parametrize("option", [{"python": "python3"}, {"workspace": "/"}])
async def test_auto_takes_no_backend_that_cannot_do_what_is_asked(monkeypatch, option):
    monkeypatch.setattr(NativePythonSandbox, "availability", not_usable)
    monkeypatch.setattr(registry, "AUTO_ORDER", ("native", "pyodide"))
    with pytest.raises(
        atoll.IsolationError, match=r"pyodide: it cannot (use another interp|show folders)"
    ):
        await registry.choose(atoll.SandboxConfig(**option))


async def test_auto_says_why_no_backend_is_strong_enough(monkeypatch, no_virtual_backend):
    monkeypatch.setattr(NativePythonSandbox, "availability", not_usable)
    with pytest.raises(atoll.IsolationError, match=r"native: no luck\. Try again\."):
        await registry.choose(atoll.SandboxConfig())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_ms": -1}, "timeout_ms must be positive"),
        ({"max_output_length": 0}, "max_output_length"),
        ({"workspace": "/no/such/folder"}, "the working folder /no/such/folder does not exist"),
        ({"workspace": "/etc/passwd"}, "is not a folder"),
        ({"min_isolation": "strong"}, "unknown isolation level 'strong': use one of none,"),
        ({"tools": {"not a name": print}}, "a tool's name must be a Python name"),
        ({"context": b"bytes"}, "decode it first"),
        ({"context": object()}, "a value of type object is not plain data"),
        ({"timeout": 5}, "unknown option 'timeout': did you mean 'timeout_ms'"),
    ],
)
def test_bad_options_say_what_is_wrong(options, message):
    with pytest.raises(atoll.ConfigError, match=message):
        atoll.create_sandbox(**options)


@pytest.mark.parametrize(
    "limits",
    [{"memory_bytes": 0}, {"memory_bytes": "1G"}, {"cpu_seconds": float("inf")}, {"env": {"A=B": "x"}}, {"env": {"A": "\0"}},
     {"max_processes": True}],
)  # fmt: skip
def test_bad_limits_are_refused(limits):
    with pytest.raises(atoll.ConfigError):
        atoll.ExecutionPolicy(**limits)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"python": "/no/such/python"}, "^there is no Python interpreter '/no/such/python'"),
        ({"policy": {"mounts": [("no-such", "/data")]}}, "^cannot mount 'no-such' at /data: there"),
    ],
)
def test_what_is_not_there_is_said_at_once(options, words):
    with pytest.raises(atoll.ConfigError, match=words):
        atoll.create_sandbox(**options)

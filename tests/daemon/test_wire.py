"""What crosses the socket arrives whole: results, errors, configurations, memory files."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import socket
import sys

import pytest

import atoll
from atoll import errors
from atoll.network import NetworkRequest, NetworkUse
from atoll.policy import ExecutionPolicy, Mount
from atoll.rpc import blobs, faults
from atoll.sandbox.context import Context
from atoll.sandbox.wire import options, results
from atoll.types import Artifact, Display, ExecuteResponse, Outcome, SandboxResult

REFUSED = NetworkRequest(host="evil.test", port=443, method="CONNECT", refused="not allowed")
FULL = SandboxResult(
    kind=Outcome.MEMORY,
    stdout="out \ud800 é" + "x" * results.LONG_TEXT,
    stderr="err",
    error="MemoryError: too much",
    error_type="MemoryError",
    error_args=("too much", {b"x"}),
    exit_code=137,
    duration_ms=1.5,
    cpu_ms=0.25,
    value={(1, 2): {b"x"}, "o": atoll.Opaque("T", "t")},
    value_repr="{...}",
    displays=(
        Display(media_type="image/png", data=b"\x89PNG"),
        Display(media_type="text/html", data=b""),
    ),
    truncated=True,
    state_lost=True,
    files_created=("a",),
    files_modified=("b", "c"),
    artifacts=(Artifact(path="a", size=1, media_type="text/plain"),),
    fuel_consumed=7,
    memory_used_bytes=1 << 40,
    state=b"state",
    workspace_path="/app",
    isolation=atoll.Isolation.JAILED,
    cold_start="the sandbox has mounts",
    image="sha256:0123",
    network=NetworkUse(requests=(REFUSED,), unlisted=2),
)


def crossed(result):
    plain, beside = results.to_wire(result)
    return results.read(SandboxResult, json.loads(json.dumps(plain)), bytes(beside))


def test_every_field_of_a_result_crosses():
    for field in dataclasses.fields(SandboxResult):
        if field.name != "kind":
            assert getattr(FULL, field.name) != field.default, f"give {field.name} a value here"
    assert crossed(FULL) == FULL
    assert crossed(SandboxResult(kind=Outcome.OK)) == SandboxResult(kind=Outcome.OK)


@pytest.mark.spec("R3.1")
def test_every_field_of_a_commands_response_crosses():
    long = "out \ud800 é" + "x" * results.LONG_TEXT
    full = ExecuteResponse(output=long, exit_code=124, truncated=True, error="why", stderr="err")
    full = dataclasses.replace(full, network=NetworkUse(requests=(REFUSED,)))
    for field in dataclasses.fields(full):
        assert getattr(full, field.name) != field.default, f"give {field.name} a value here"
    for response in (full, ExecuteResponse(output=""), ExecuteResponse(output="x", exit_code=0)):
        plain, beside = results.to_wire(response)
        plain = json.loads(json.dumps(plain))
        assert results.read(ExecuteResponse, plain, bytes(beside)) == response


@pytest.mark.parametrize("plain", [{}, {"output": [0, 9]}, {"output": "", "new": 1}, {"output": 5}])
def test_what_is_no_response_is_refused(plain):
    with pytest.raises(atoll.SandboxError, match="no result"):
        results.read(ExecuteResponse, plain, b"")


@pytest.mark.parametrize(
    "plain",
    [{}, {"kind": "NO"}, {"kind": "OK", "new": 1}, {"kind": "OK", "stdout": [0, 9]},
     {"kind": "OK", "artifacts": [[1]]}, {"kind": "OK", "isolation": "STRONG"}],
)  # fmt: skip
def test_what_is_no_result_is_refused(plain):
    with pytest.raises(atoll.SandboxError, match="no result"):
        results.read(SandboxResult, plain, b"")


ERRORS = [
    errors.AtollError("plain"),
    errors.ConfigError("bad"),
    errors.ComponentMissingError("no component"),
    errors.UnknownBackendError("x", ["native"]),
    errors.LimitUnsupportedError("native", "disk_bytes", "why"),
    errors.BackendUnavailableError("native", "reason", "hint"),
    errors.IsolationError("native", "reason", "hint"),
    errors.SandboxError("failed"),
    errors.PortError(8000, "nothing listens there"),
    errors.ProcessError("there is no process 3"),
    errors.SandboxStartError("mount", "no"),
    errors.SandboxClosedError(),
    errors.SandboxLostError("gone"),
    errors.BusyError("full"),
    errors.UnsupportedError("native", "fork"),
    errors.StateError("unreadable"),
    errors.StateTooLargeError("too large", limit=9, size=10),
    errors.SandboxLostError("gone for good", retryable=False),
    errors.ExecutionTimeoutError("late"),
    errors.VariableError("x", "deep"),
    errors.FleetError("no store"),
    errors.PackageError("polars", "no wheel", "allow sources", no_wheel_of="polars==1"),
    errors.ImageError("python:3.12", "no such image", "look at its name"),
]


def returned(fault):
    return faults.from_wire(json.loads(faults.to_wire("1", fault))["error"])


@pytest.mark.parametrize("fault", ERRORS, ids=lambda one: type(one).__name__)
def test_an_error_arrives_as_its_own_class_with_all_it_says(fault):
    fault.add_note("a note")
    found = returned(fault)
    assert type(found) is type(fault)
    assert str(found) == str(fault)
    assert vars(found) == vars(fault)
    assert found.retryable == fault.retryable


def test_every_error_class_is_tried():
    def below(kind):
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    stay = {*below(errors.ArchiveError), *below(errors.WebError), *below(errors.RetrievalError)}
    stay |= {*below(errors.ModelError), errors.MemoryStoreError}
    known = {one for one in below(errors.AtollError) if one.__module__ == "atoll.errors"} - stay
    assert {type(one) for one in ERRORS} == known


def test_an_error_of_another_kind_is_a_sandbox_error():
    found = returned(ZeroDivisionError("x"))
    assert type(found) is errors.SandboxError
    assert str(found) == "ZeroDivisionError: x"
    odd = {"message": "m", "data": {"class": "ConfigError.__init__", "fields": [1]}}
    assert type(faults.from_wire(odd)) is errors.SandboxError


def config_crossed(config, **changes):
    data = {**json.loads(json.dumps(options.to_wire(config))), **changes}
    return options.from_wire(data)


def test_the_configuration_crosses_with_every_limit(tmp_path):
    policy = ExecutionPolicy(
        memory_bytes=1, max_processes=None, cpu_seconds=2.5, disk_bytes=3, file_size_bytes=4,
        max_open_files=5, stdout_max_bytes=6, stderr_max_bytes=7, fuel_budget=8, env={"A": "b"},
        mounts=(Mount(source=tmp_path, target="/data", writable=True),),
        folders=("/logs",),
    )  # fmt: skip
    default = ExecutionPolicy()
    for field in dataclasses.fields(policy):
        assert getattr(policy, field.name) != getattr(default, field.name)
    config = atoll.SandboxConfig(
        policy=policy, timeout_ms=5, max_output_length=6, max_concurrency=7,
        workspace=tmp_path, min_isolation="confined", python="/usr/bin/python3",
    )  # fmt: skip
    found = config_crossed(config)
    assert found.policy == policy
    for name in ("timeout_ms", "max_output_length", "max_concurrency", "workspace", "python"):
        assert getattr(found, name) == getattr(config, name)
    assert found.min_isolation is atoll.Isolation.CONFINED


def test_the_clients_own_python_is_meant_by_none():
    assert options.to_wire(atoll.SandboxConfig())["python"] == sys.executable
    assert config_crossed(atoll.SandboxConfig()).python is None


@pytest.mark.parametrize(
    "changes",
    [{"python": "python3", "interpreter": None}, {"workspace": "here"}, {"timeout_ms": "x"}, {"policy": {}},
     {"min_isolation": "HUGE"}, {"policy": None}, {"workspace": 5}],
)  # fmt: skip
def test_a_configuration_that_cannot_be_is_refused(changes):
    with pytest.raises(atoll.ConfigError):
        config_crossed(atoll.SandboxConfig(), **changes)


def facts(**changes):
    return {"width": 1, "length": 5, "ascii": True, "json": False, **changes}


def test_a_context_is_adopted_as_it_is():
    given = Context.from_text("x" * 100)
    found = Context.adopt(given.describe(), os.dup(given.fd))
    assert found.value == "x" * 100
    found.close()


@pytest.mark.parametrize(
    "changes",
    [{"length": 6}, {"length": -1}, {"length": True}, {"width": 3}, {"width": 4}, {"ascii": 1},
     {"json": None}, {"length": 1 << 60}],
)  # fmt: skip
def test_a_context_that_is_not_what_it_says_is_refused_and_closed(changes):
    given = Context.from_text("hello")
    fd = os.dup(given.fd)
    with pytest.raises(atoll.ConfigError):
        Context.adopt(facts(**changes), fd)
    with pytest.raises(OSError):
        os.fstat(fd)


def unsealed():
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(fd, b"hello\0")
    return fd


def half_sealed():
    fd = unsealed()
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


@pytest.mark.parametrize(
    "make",
    [unsealed, half_sealed, lambda: os.open("/etc/passwd", os.O_RDONLY), lambda: os.pipe()[0],
     lambda: socket.socket().detach()],
    ids=["unsealed", "half", "file", "pipe", "socket"],
)  # fmt: skip
def test_what_could_change_or_block_is_refused(make):
    for use in (blobs.read, lambda fd: Context.adopt(facts(), fd)):
        fd = make()
        with pytest.raises(atoll.ConfigError, match="sealed memory file"):
            use(fd)
        with pytest.raises(OSError):
            os.fstat(fd)


def test_bytes_cross_in_a_memory_file():
    assert blobs.read(blobs.write(b"x" * 70_000)) == b"x" * 70_000
    assert blobs.read(blobs.write(b"")) == b""

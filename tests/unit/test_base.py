"""The abstract base, the blocking shell, the public names."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import atoll
from atoll.log import LogEvent
from atoll.types import Outcome, SandboxResult


class Echo(atoll.BaseSandbox):
    async def execute(self, code, *, timeout_ms=None):
        result = SandboxResult(kind=Outcome.OK, stdout=code)
        self._log_execution_metrics(result)
        return result

    async def validate_code(self, code):
        return True


@pytest.mark.spec("R1.1")
def test_a_subclass_must_implement_execute_and_validate_code():
    with pytest.raises(TypeError, match="abstract"):
        atoll.BaseSandbox()

    class Half(atoll.BaseSandbox):
        async def execute(self, code, *, timeout_ms=None):
            raise AssertionError

    with pytest.raises(TypeError, match="validate_code"):
        Half()


@pytest.mark.spec("R1.1")
def test_the_base_holds_policy_workspace_and_logger():
    events: list[LogEvent] = []
    logger = atoll.SandboxLogger(events.append)
    policy = atoll.ExecutionPolicy(memory_bytes=1 << 20)
    box = Echo(policy, Path("/work"), logger)
    assert (box.policy, box.workspace, box.logger) == (policy, Path("/work"), logger)
    assert asyncio.run(box.execute("hi")).stdout == "hi"
    assert events[0].name == "execution_complete"
    assert Echo().policy == atoll.ExecutionPolicy()


@pytest.mark.spec("R1.1")
async def test_the_base_is_harmless_where_a_backend_adds_nothing():
    async with Echo() as box:
        await box.initialize("context")
        await box.cancel()
        assert await box.get_variable("x", 5) == 5
        assert box.isolation == atoll.Isolation.NONE
        assert isinstance(box, atoll.Sandbox)


@pytest.mark.spec("R3.11")
async def test_a_backend_that_declares_no_workspace_says_so_when_it_is_used():
    with pytest.raises(atoll.UnsupportedError, match="backend 'custom' cannot ls files"):
        await Echo().files.ls()


@pytest.mark.spec("R3.11")
async def test_a_backend_that_declares_no_shell_has_none():
    with pytest.raises(atoll.UnsupportedError, match="backend 'custom' cannot run shell commands"):
        await Echo().shell("true")


def test_the_blocking_shell_has_every_method_with_the_same_arguments():
    def public(cls):
        return {n for n in dir(cls) if not n.startswith("_")} | set(
            getattr(cls, "__annotations__", ())
        )

    for_backends = {"ask_process", "ask_variable", "find_fault", "runtime_memory"}
    names = public(atoll.Sandbox) - for_backends
    assert names <= public(atoll.SyncSandbox)
    for name in names:
        method = getattr(atoll.Sandbox, name, None)
        if inspect.iscoroutinefunction(method):
            blocking = inspect.signature(getattr(atoll.SyncSandbox, name))
            own = [
                one
                for key, one in blocking.parameters.items()
                if (name, key) != ("execute", "options")
            ]
            blocking = blocking.replace(parameters=own)  # those of the backend wasm alone
            shown = str(blocking).replace("SyncSandbox", "BaseSandbox")
            shown = shown.replace("SyncProcess", "Process")
            assert shown == str(inspect.signature(method)), name


def test_the_blocking_process_has_every_method_with_the_same_arguments():
    names = {name for name in dir(atoll.Process) if not name.startswith("_")}
    assert names == {name for name in dir(atoll.SyncProcess) if not name.startswith("_")} - {"info"}
    for name in names:
        method = getattr(atoll.Process, name)
        if inspect.iscoroutinefunction(method):
            blocking = inspect.signature(getattr(atoll.SyncProcess, name))
            assert str(blocking) == str(inspect.signature(method)), name


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_sandbox_that_is_pickled_or_copied_says_what_to_do_instead(attempt):
    for box in (Echo(), atoll.SyncSandbox(Echo())):
        with pytest.raises(TypeError, match=r"save\(\) returns its state as bytes .* fork\(\)"):
            attempt(box)


def test_a_blocking_call_from_a_callback_is_refused(tmp_path):
    failures = []

    def on_stdout(line):
        try:
            box.execute("1")
        except RuntimeError as exc:
            failures.append(str(exc))

    with atoll.create_sandbox(on_stdout=on_stdout) as box:
        box.execute("print(1)")
    assert failures == ["a blocking call from a callback would wait for itself: use atoll.aio"]


def test_importing_loads_next_to_nothing():
    code = "import sys, atoll; print([m for m in sys.modules if m.startswith('atoll.')], 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"


def test_the_public_names_are_these():
    assert all(getattr(atoll, name) is not None for name in atoll.__all__)
    assert dir(atoll) == sorted(atoll.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        atoll.nothing  # noqa: B018


def test_a_failed_result_is_told_by_success_and_not_by_truth():
    failed = SandboxResult(kind=Outcome.ERROR, error="ValueError: x")
    assert not failed.success
    assert bool(failed), "`if result:` asks whether there is a result"

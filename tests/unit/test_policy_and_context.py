"""A policy as a dict and a context as a path: wherever either is taken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import atoll
from atoll.agent.environment.options import configured
from atoll.agent.rlm.options import OURS
from atoll.errors import ConfigError
from atoll.policy import MIB


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "context.txt"
    path.write_text("one two three\n" * 10_000)
    return path


@pytest.mark.spec("R1.1")
def test_a_dict_is_a_policy_with_these_fields():
    given = {"memory_bytes": 64 * MIB, "env": {"A": "b"}}
    assert atoll.ExecutionPolicy.of(given) == atoll.ExecutionPolicy(**given)
    assert atoll.SandboxConfig(policy=given).policy == atoll.ExecutionPolicy(**given)
    assert configured(None, {"policy": given}).policy == atoll.ExecutionPolicy(**given)
    assert atoll.ExecutionPolicy.of(None) == atoll.ExecutionPolicy()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"memory_byte": 1}, "unknown policy field 'memory_byte': did you mean 'memory_bytes'?"),
        ({"qqq": 1}, "unknown policy field 'qqq': use one of cpu_seconds, disk_bytes"),
        ({"memory_bytes": -1}, "memory_bytes must be positive"),
        ({"env": {"A": 5}}, "env must map str to str, not 'A' to 5"),
        ({"mounts": "/data"}, "mounts must be a list such as"),
        ({"mounts": ["/data"]}, "a mount is a Mount, a dict or"),
        ({"mounts": [("/data",)]}, "a mount is a Mount, a dict or"),
        ({"mounts": [("/data", "data")]}, "a mount's target must be an absolute path below /"),
        ({"mounts": [("/data", "/a\0b")]}, "a path of a mount contains a zero byte"),
        ({"mounts": [("/da\0ta", "/a")]}, "a path of a mount contains a zero byte"),
        ({"mounts": [{"source": "/data", "targt": "/data"}]}, "unknown mount field 'targt': did you mean 'target'?"),
        ({"mounts": [{"target": "/data"}]}, "a mount takes two paths, not None and '/data'"),
        ("strict", "policy must be an ExecutionPolicy or a dict, not str"),
    ],
)  # fmt: skip
def test_a_wrong_policy_says_what_is_wrong(policy, message):
    with pytest.raises(ConfigError) as caught:
        atoll.SandboxConfig(policy=policy)
    assert str(caught.value).startswith(message)


def test_mounts_may_be_dicts_and_tuples():
    policy = atoll.ExecutionPolicy.of(
        {"mounts": [("/a", "/x"), ("/b", "/y", True), {"source": "/c", "target": "/z"}]}
    )
    assert policy.mounts == (
        atoll.Mount(source=Path("/a"), target="/x"),
        atoll.Mount(source=Path("/b"), target="/y", writable=True),
        atoll.Mount(source=Path("/c"), target="/z"),
    )


def test_a_sandbox_takes_a_dict_with_mounts(tmp_path):
    (tmp_path / "file").write_text("mounted")
    tmp_path.chmod(0o755)  # the guest is another user
    policy = {"max_processes": 16, "env": {"WHO": "me"}, "mounts": [(tmp_path, "/data")]}
    with atoll.create_sandbox(backend="native", policy=policy) as box:
        code = "import os; open('/data/file').read() + os.environ['WHO']"
        assert box.execute(code).value == "mountedme"


@pytest.mark.parametrize("backend", ["native", "restricted"])
def test_a_path_is_the_text_of_its_file(text, backend):
    with atoll.create_sandbox(backend=backend, context=text) as box:
        assert box.execute("len(context)").value == text.stat().st_size
        assert box.inner.context_is_shared
        box.initialize(text)
        assert box.execute("context[:3]").value == "one"


async def test_an_async_sandbox_takes_a_path(text):
    async with atoll.aio.create_sandbox(backend="native", context=text) as box:
        assert (await box.execute("len(context)")).value == text.stat().st_size


def test_an_environment_takes_a_path(text):
    with atoll.REPLEnvironment(backend="native", context=text) as env:
        assert env.execute("context_len").result.value == text.stat().st_size


def test_an_rlm_takes_a_path(text):
    model = atoll.ScriptedModel(["```python\nFINAL(context[:7])\n```"])
    with atoll.RLM(model, backend="native", direct_tokens=1) as rlm:
        assert rlm.completion("what is first?", text).text == "one two"
    assert "context" in OURS  # which is given with the question


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.txt", "cannot be read: No such file or directory"),
        (".", "is a folder"),
        ("latin.txt", "is not UTF-8 text"),
    ],
)
def test_a_path_that_is_not_a_text_file_says_so(tmp_path, name, message):
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 5)
    path = tmp_path / name
    for attempt in (
        lambda: atoll.create_sandbox(backend="restricted", context=path),
        lambda: atoll.REPLEnvironment(backend="restricted", context=path),
    ):
        with pytest.raises(ConfigError, match=message):
            attempt()
    if name != ".":  # a folder is what a question may be asked over
        with atoll.RLM(atoll.ScriptedModel([])) as rlm, pytest.raises(ConfigError):
            rlm.completion("what?", path)


def test_a_path_of_the_home_folder_is_found(text, monkeypatch):
    monkeypatch.setenv("HOME", str(text.parent))
    with atoll.create_sandbox(backend="restricted", context=Path("~/context.txt")) as box:
        assert box.execute("context[:3]").value == "one"


def test_a_base_sandbox_takes_a_dict():
    class Echo(atoll.BaseSandbox):
        async def execute(self, code, *, timeout_ms=None, key=None):
            raise AssertionError

        async def validate_code(self, code):
            return True

    box = Echo({"memory_bytes": MIB})
    assert box.policy.memory_bytes == MIB
    assert asyncio.run(box.validate_code("")) is True


def test_a_file_that_says_it_is_empty_is_read_all_the_same():
    with atoll.create_sandbox(backend="native", context=Path("/proc/self/status")) as box:
        assert box.execute("context[:5]").value == "Name:"


def test_a_sandbox_shows_its_backend_and_whether_it_is_closed():
    with atoll.create_sandbox(backend="native") as box:
        assert repr(box).endswith(f": native, {box.isolation}>")
    assert repr(box).endswith(", closed>")

"""What a caller writes must type-check as it is."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import atoll
import atoll.aio


def blocking(folder: Path) -> None:
    policy = {"memory_bytes": 1 << 28, "mounts": [(folder, "/data")]}
    with atoll.create_sandbox(
        backend="pyodide", index_url=["https://example.org"], use_worker=False, policy=policy
    ) as box:
        assert_type(box, atoll.SyncSandbox)
        result = box.execute("1", timeout_ms=100, key="k")
        assert_type(result, atoll.SandboxResult)
        assert_type(result.kind, atoll.Outcome)
        assert_type(box.has_variable("x"), bool)
        assert_type(box.variables(hidden=True), atoll.Variables)
        assert_type(box.variables()[0], atoll.Variable)
        assert_type(box.set_variable("x", [1]), None)
        assert_type(box.files.stat("x"), atoll.FileInfo)
        box.files.move("a", "b", overwrite=True)
        box.files.delete("b", recursive=True)
        box.files.mkdir("c")


def configured(folder: Path) -> atoll.SandboxConfig:
    mount = atoll.Mount(source=folder, target="/data", writable=True)
    policy = atoll.ExecutionPolicy(mounts=(mount,))
    return atoll.SandboxConfig(
        policy=policy, context=folder / "text", min_isolation=atoll.Isolation.JAILED
    )


async def waiting() -> None:
    async with atoll.aio.create_sandbox(context=Path("text")) as box:
        assert_type(box, atoll.BaseSandbox)
        assert_type(await box.variables(), atoll.Variables)
        await box.files.delete("x")
    async with atoll.aio.PythonSandbox({"fuel_budget": 5}, workspace="/tmp") as wasm:
        assert_type(await wasm.execute("1", inject_setup=False), atoll.SandboxResult)
    async with atoll.aio.LocalSandbox() as local:
        assert_type(await local.execute("ls"), atoll.ExecuteResponse)


def in_wasm() -> None:
    with atoll.PythonSandbox({"fuel_budget": 5}, "/tmp", atoll.SandboxLogger()) as wasm:
        assert_type(wasm.execute("1", inject_setup=False), atoll.SandboxResult)
        assert_type(wasm.validate_code("1"), bool)


def answered() -> str:
    with atoll.RLM("openai/x", max_depth=2, backend="native", policy={"memory_bytes": 5}) as rlm:
        return str(rlm.completion("what?", Path("text")))

"""Misuse that mypy must find (`make check`): an `ignore` that ignores nothing is an error there."""

# ruff: noqa: B018
from __future__ import annotations

import atoll
import atoll.aio

atoll.NoSuchName  # type: ignore[attr-defined]
atoll.aio.NoSuchName  # type: ignore[attr-defined]
atoll.create_sandbox(timeout=5)  # type: ignore[call-arg]
atoll.create_sandbox(index_url=5)  # type: ignore[arg-type]
atoll.create_sandbox(use_worker="no")  # type: ignore[arg-type]
atoll.create_sandbox(policy=5)  # type: ignore[arg-type]
atoll.REPLEnvironment(no_such_option=1)  # type: ignore[call-arg]
atoll.RLM("m", max_dept=1)  # type: ignore[call-arg]
atoll.ExecutionPolicy(memory=5)  # type: ignore[call-arg]
atoll.Mount("/a", "/b")  # type: ignore[arg-type, call-arg]
with atoll.create_sandbox() as box:
    box.get_variables()  # type: ignore[attr-defined]
    box.execute(b"1")  # type: ignore[arg-type]
    box.execute("1", inject_setup="no")  # type: ignore[arg-type]
    box.files.delete("x", True)  # type: ignore[call-arg]
    box.files.remove("x")  # type: ignore[attr-defined]
    box.variables().nothing  # type: ignore[attr-defined]
    number: int = box.execute("1").stdout  # type: ignore[assignment]

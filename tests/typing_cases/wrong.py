"""Misuse that a type checker must find: each line that says `error` has one, no other line has."""

# ruff: noqa: B018
from __future__ import annotations

import atoll
import atoll.aio

atoll.NoSuchName  # error
atoll.aio.NoSuchName  # error
atoll.create_sandbox(timeout=5)  # error
atoll.create_sandbox(index_url=5)  # error
atoll.create_sandbox(use_worker="no")  # error
atoll.create_sandbox(policy=5)  # error
atoll.REPLEnvironment(no_such_option=1)  # error
atoll.RLM("m", max_dept=1)  # error
atoll.ExecutionPolicy(memory=5)  # error
atoll.Mount("/a", "/b")  # error
with atoll.create_sandbox() as box:
    box.get_variables()  # error
    box.execute(b"1")  # error
    box.execute("1", inject_setup=True)  # error
    box.files.delete("x", True)  # error
    box.files.remove("x")  # error
    box.variables().nothing  # error
    number: int = box.execute("1").stdout  # error

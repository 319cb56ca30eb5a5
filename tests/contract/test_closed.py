"""A sandbox that was destroyed says so, whatever is asked of it."""

from __future__ import annotations

import pytest

import atoll

CALLS = {
    "execute": lambda box: box.execute("1"),
    "validate_code": lambda box: box.validate_code("1"),
    "get_variable": lambda box: box.get_variable("x"),
    "has_variable": lambda box: box.has_variable("x"),
    "variables": lambda box: box.variables(),
    "set_variable": lambda box: box.set_variable("x", 1),
    "shell": lambda box: box.shell("true"),
    "fork": lambda box: box.fork(),
    "checkpoint": lambda box: box.checkpoint(),
    "rollback": lambda box: box.rollback("x"),
    "branches": lambda box: box.branches(),
    "save": lambda box: box.save(),
    "files.ls": lambda box: box.files.ls(),
    "files.read": lambda box: box.files.read("x"),
    "files.write": lambda box: box.files.write("x", ""),
    "files.upload": lambda box: box.files.upload([("x", b"")]),
    "files.delete": lambda box: box.files.delete("x"),
    "files.stat": lambda box: box.files.stat("x"),
}
MESSAGE = "the sandbox is closed.*create_sandbox.*initialize"


@pytest.mark.spec("R0.2")
def test_every_method_of_a_destroyed_sandbox_says_that_it_is_closed(open_box):
    box = open_box()
    before = box.files
    box.destroy()
    for name, call in CALLS.items():
        with pytest.raises(atoll.SandboxClosedError, match=MESSAGE):
            call(box)
            pytest.fail(f"{name} did not raise")
    with pytest.raises(atoll.SandboxClosedError, match=MESSAGE):
        before.ls()
    box.destroy()
    box.cancel()
    box.initialize()
    assert box.execute("1").value == 1
    assert box.variables().names == []


@pytest.mark.spec("R0.2")
def test_after_its_with_block_it_is_closed(open_box):
    with open_box() as box:
        assert box.execute("1").success
    with pytest.raises(atoll.SandboxClosedError, match="its `with` block has ended"):
        box.execute("1")

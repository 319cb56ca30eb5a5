"""A guard before any backend: a refusal is a result, nothing runs, the session lives on."""

from __future__ import annotations

import pytest

from atoll.log import SandboxLogger


@pytest.mark.spec("R4.1", "R4.2")
@pytest.mark.parametrize("guard", ["ast", "restrictedpython"])
def test_a_guard_refuses_before_anything_runs(open_box, guard):
    events = []
    box = open_box(guard=guard, logger=SandboxLogger(events.append))
    assert box.execute("x = 20 + 1\nx * 2").value == 42
    result = box.execute("x = 'changed'\nx.__class__.__base__")
    assert (result.kind, result.error_type, result.exit_code) == ("refused", "GuardError", 1)
    assert (result.success, result.state_lost) == (False, False)
    assert "line 2, " in result.error
    assert result.isolation is box.isolation
    assert [e.fields["type"] for e in events if e.name == "security"] == ["guard_refusal"]
    assert box.get_variable("x") == 21


@pytest.mark.spec("R4.1", "R4.2")
@pytest.mark.parametrize("guard", ["ast", "restrictedpython"])
def test_imports_and_calls_that_lead_to_the_system_are_refused(open_box, guard):
    box = open_box(guard=guard)
    for code in (
        "import os",
        "from subprocess import run",
        "open('/etc/passwd')",
        "eval('1')",
        "__import__('os')",
        "getattr(1, 'real')",
        "'{0.__class__}'.format(1)",
    ):
        assert box.execute(code).kind == "refused", code
    assert box.execute("import math\nmath.floor(2.5)").value == 2


@pytest.mark.spec("R4.1")
def test_a_guard_reads_code_as_it_was_pasted(open_box):
    box = open_box(guard="ast")
    assert box.execute("```python\nx = 6\nx * 7\n```").value == 42
    result = box.execute("```python\nx = 1\nimport os\n```")
    assert (result.kind, "line 3, module: os" in result.error) == ("refused", True)


@pytest.mark.spec("R4.2")
def test_what_a_cell_printed_is_in_printed_under_restrictedpython(open_box):
    box = open_box(guard="restrictedpython")
    result = box.execute("print('a', 1)\nprint('b', end='')\nresult = printed\nresult")
    assert (result.value, result.stdout) == ("a 1\nb", "a 1\nb")
    assert box.execute("printed").value == "", "each cell has its own"
    assert box.execute("def f():\n    print('in')\nf()\nprinted.upper()").value == "IN\n"
    assert box.execute("print('x')").stdout == "x\n"
    assert box.execute("printed = 5").kind == "refused"
    failed = box.execute("print('x')\nx = printed\n1/0")
    assert "line 3" in failed.stderr + (failed.error or "")


@pytest.mark.spec("R4.1")
def test_without_a_guard_code_runs_as_it_is(open_box):
    box = open_box()
    assert box.execute("f'{(1).__class__.__name__}'").value == "int"


TROJAN = (
    "level = 'user'\nif level != 'user\u202e \u2066# check\u2069 \u2066':\n    print('admin')\n"
)


@pytest.mark.parametrize("guard", ["ast", "restrictedpython"])
def test_a_guard_refuses_bidirectional_control_characters(open_box, guard):
    box = open_box(guard=guard)
    result = box.execute(TROJAN)
    assert (result.kind, result.error_type) == ("refused", "GuardError")
    assert "line 2, bidirectional: column 18 has RIGHT-TO-LEFT OVERRIDE (U+202E)" in result.error
    assert box.execute("# \u200f a mark in a comment").kind == "refused"
    assert box.execute("%time '\u2067'").kind == "refused"
    assert box.execute("'שלום é \\u202e'").value == "שלום é \u202e"


def test_without_a_guard_such_code_runs_with_a_warning(box):
    if box.backend == "restricted":
        assert box.execute(TROJAN).kind == "refused"
        return
    result = box.execute(TROJAN + "# \u202d\n1")
    assert (result.success, result.value, result.stdout) == (True, 1, "admin\n")
    assert result.stderr == (
        "warning: line 2 has a bidirectional control character (U+202E): "
        "the code may not be what it looks like\n"
    )
    assert box.execute("'שלום é \\u202e'").stderr == ""

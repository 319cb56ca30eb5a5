"""Nothing that a guest says of itself is believed: its answers are checked, its use is measured."""

from __future__ import annotations

import math

import pytest

import atoll
from atoll import Capability
from atoll.policy import MIB

pytestmark = pytest.mark.needs(Capability.SUBPROCESS)

FORGE = """
def forge():
    import sys
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get('self'), '_methods'):
        frame = frame.f_back
    methods = frame.f_locals['self']._methods
    honest = methods[{method!r}]
    methods[{method!r}] = lambda params: dict(honest(params), **{claim})
forge()
"""
LEVELS = {"gvisor": atoll.Isolation.KERNEL}
LIES = {
    "memory": "{'memory_bytes': 10**15}",
    "time": "{'duration_ms': 'nan', 'cpu_ms': float('1e300') * -1}",
    "loss": "{'state_lost': True, 'isolation': 'none', 'stdout': 'forged', 'fuel_consumed': 1}",
}
BROKEN = {
    "outside": "{'files': {'created': [['/etc/passwd', 1]], 'modified': []}}",
    "above": "{'files': {'created': [], 'modified': [['../../root/.ssh/id_rsa', 1]]}}",
    "negative size": "{'files': {'created': [['a', -1]], 'modified': []}}",
    "exit code": "{'exit_code': -5}",
    "kind": "{'kind': 'timeout'}",
    "text": "{'error': 5}",
}


@pytest.fixture
def box(open_box):
    """A sandbox of its own: what is forged in it stays forged."""
    return open_box()


def forge(box, claim, method="execute"):
    assert box.execute(FORGE.format(method=method, claim=claim)).success


@pytest.mark.parametrize("claim", LIES.values(), ids=LIES)
def test_figures_that_a_guest_claims_are_not_used(box, claim):
    forge(box, claim)
    result = box.execute("print('real')")
    assert result.success, result
    assert (result.stdout, result.state_lost) == ("real\n", False)
    assert 0 < result.duration_ms < 60_000
    assert 0 <= result.cpu_ms < 60_000
    assert 0 < result.memory_used_bytes < 4096 * MIB
    assert result.isolation is LEVELS.get(box.backend, atoll.Isolation.JAILED)


@pytest.mark.parametrize("claim", BROKEN.values(), ids=BROKEN)
def test_a_forged_answer_ends_its_guest_in_words(box, claim):
    forge(box, claim)
    result = box.execute("1")
    assert (result.kind, result.state_lost) == ("broken", True)
    assert result.error == (
        "ProtocolError: the guest broke the protocol and was ended: an answer of no known shape"
    )
    assert result.files == ()
    assert box.execute("6 * 7").value == 42


@pytest.mark.spec("R1.8")
def test_a_patched_clock_or_meter_changes_no_figure(box):
    box.execute(
        "import resource, time, os, sys\n"
        "class Lie:\n    ru_maxrss = 10**15\n"
        "resource.getrusage = lambda who: Lie\n"
        "time.perf_counter = time.process_time = lambda: float('nan')\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if hasattr(module, 'resource'): module.resource = resource"
    )
    result = box.execute("sum(range(2_000_000))")
    assert result.memory_used_bytes < 4096 * MIB
    assert math.isfinite(result.duration_ms)
    assert 1 < result.cpu_ms < 60_000


@pytest.mark.spec("R1.8")
def test_children_count_for_the_cpu_time(box):
    burn = "import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {!r}], check=True)"
    result = box.execute(burn.format("for _ in range(4_000_000): pass"))
    assert result.success, result
    assert result.cpu_ms > 50


@pytest.mark.parametrize(
    ("ending", "kind"),
    [("import os; os._exit(3)", "exited"), ("sum(range(10**13))", "timeout")],
)  # fmt: skip
def test_a_guest_that_ends_does_not_hide_what_it_used(box, ending, kind):
    result = box.execute(f"held = b'x' * (40 << 20)\n{ending}", timeout_ms=700)
    assert (result.kind, result.state_lost) == (kind, True)
    if result.memory_used_bytes is not None:  # without control groups nothing is left to read
        assert result.memory_used_bytes >= 40 * MIB


@pytest.mark.parametrize("size", ["'1'", "-1", "1 << 70", "None", "True"])
def test_a_forged_size_of_a_state_saves_nothing(box, size):
    forge(box, f"{{'size': {size}}}", "save")
    with pytest.raises(atoll.StateError):
        box.save()


def test_a_key_stands_for_one_call(box):
    first = box.execute("n = 1", key="k")
    assert box.execute("n = 1", key="k") == first
    with pytest.raises(atoll.ConfigError, match="the key 'k' was used with other code"):
        box.execute("n = 2", key="k")
    assert box.get_variable("n") == 1
    assert box.execute("n = 2", key="another").success


@pytest.mark.parametrize("key", ["", 5, "k" * 201])
def test_a_key_is_a_text_of_limited_length(box, key):
    with pytest.raises(atoll.ConfigError, match="a key is a text of 1 to 200 characters"):
        box.execute("ran = True", key=key)
    assert not box.has_variable("ran")

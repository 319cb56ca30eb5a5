"""Tools that misbehave: a clear error in the guest, and the session goes on."""

from __future__ import annotations

import threading

import pytest

import atoll


@pytest.fixture(scope="module")
def env():
    held = {}
    stop = threading.Event()

    @atoll.tool(timeout_seconds=0.2)
    def hang(n: int) -> int:
        """Never return."""
        stop.wait(60)
        return n

    @atoll.tool(read_only=True)
    def huge(n: int) -> str:
        """Return very much."""
        return "x" * n

    @atoll.tool
    def again(code: str) -> str:
        """Run a cell from within a tool."""
        return held["env"].execute(code).observation

    @atoll.tool
    def leave() -> None:
        """Try to end the host."""
        raise SystemExit(3)

    @atoll.tool(read_only=True)
    def broken(n: int) -> int:
        """Raise something that cannot be shown."""

        class OddError(Exception):
            def __str__(self):
                raise RuntimeError

        raise OddError

    with atoll.REPLEnvironment(backend="native", tools=[hang, huge, again, leave, broken]) as found:
        held["env"] = found
        yield found
    stop.set()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("hang(1)", "TimeoutError: hang has not answered in 0.2 s: the call was given up"),
        ("huge(100_000_000)", "the value has more than 25,165,824 bytes"),
        ("again('1 + 1')", "the tool again cannot run a cell: it is called by one"),
        ("leave()", "SystemExit: 3"),
        ("broken(1)", "OddError: <the message could not be shown>"),
        ("hung(1)", "name 'hung' is not defined"),
        ("CALL('hangs', 1)", "no tool 'hangs': did you mean 'hang'?"),
        ("hang()", "missing 1 required positional argument: 'n'"),
        ("huge('a')", "huge: n must be int, not str"),
    ],
)
def test_a_call_that_goes_wrong_is_an_error_of_the_call(env, call, said):
    env.execute("kept = 5")
    turn = env.execute(
        f"try:\n    {call}\nexcept BaseException as exc:\n    print(type(exc).__name__ + ':', exc)"
    )
    assert said in turn.observation
    assert env.execute("kept").result.value == 5, "nothing is lost"


@pytest.mark.parametrize(
    ("call", "outcome"), [("leave()", "SystemExit"), ("broken(1)", "OddError")]
)
def test_the_log_has_the_same_ending_with_and_without_prefetch(env, call, outcome):
    turn = env.execute(f"try:\n    {call}\nexcept BaseException: pass")
    assert turn.calls[-1].outcome == outcome
    if call == "broken(1)":
        turn = env.execute("huge(1)\nbroken(1)\nhuge(2)")
        assert [(one.outcome, one.prefetched) for one in turn.calls] == [
            ("ok", True),
            ("OddError", True),
        ]


def test_a_result_that_is_too_large_to_send_is_an_error_beside_good_ones(env):
    turn = env.execute("a = huge(3)\nb = huge(100_000_000)\nc = huge(4)")
    assert "the value has more than 25,165,824 bytes" in turn.observation
    assert env.execute("a").result.value == "xxx"

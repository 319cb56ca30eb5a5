"""parallel_tools: read-only calls run side by side, and nothing else can be told from it."""

from __future__ import annotations

import random
import threading

import pytest

import atoll
from atoll.agent.environment.chains.prefetch import _calls_of
from atoll.agent.environment.tools.registry import Registry

TEXT = "".join(f"entry {n}: value {n * n}\n" for n in range(500))
SECONDS = 20
PROGRAMS = 60


class World:
    """Tools with a state; calls are counted whether their results are used or not."""

    def __init__(self) -> None:
        self.store: dict[str, int] = {}
        self.made: list[str] = []
        self.together = threading.Barrier(4, timeout=SECONDS)

    def tools(self):
        @atoll.tool(read_only=True)
        def get(key: str, default: int = 0) -> int:
            """Read a number."""
            self.made.append(key)
            if key == "bad":
                raise KeyError(key)
            return self.store.get(key, default)

        @atoll.tool(read_only=True)
        async def aget(key: str) -> int:
            """Read a number, later."""
            return self.store.get(key, 0)

        @atoll.tool(read_only=True)
        def meet(name: str) -> str:
            """Wait for three others."""
            self.together.wait()
            return name

        @atoll.tool
        def put(key: str, value: int) -> int:
            """Store a number."""
            self.store[key] = value
            return value

        @atoll.tool(read_only=True, cost="network")
        def visit(url: str) -> str:
            """Fetch something."""
            self.made.append(url)
            return url

        return [get, aget, meet, put, visit]


def open_env(world, *, parallel):
    return atoll.REPLEnvironment(
        backend="native", context=TEXT, tools=world.tools(), parallel_tools=parallel
    )


@pytest.fixture(scope="module")
def pair():
    """Return two environments, sequential and parallel, with the same tools."""
    worlds = World(), World()
    with open_env(worlds[0], parallel=False) as one, open_env(worlds[1], parallel=True) as other:
        yield (worlds[0], one), (worlds[1], other)


@pytest.mark.spec("R4.19")
def test_independent_read_only_calls_run_side_by_side(pair):
    _, (_, env) = pair
    code = "a = meet('a')\nname = 'b'\nb = meet(name)\nprint(meet('c') + CALL('meet', 'd'))\na + b"
    turn = env.execute(code)
    assert turn.result.value == "ab", turn.observation
    assert "cd" in turn.observation
    assert [one.prefetched for one in turn.calls] == [True] * 4


def found(code):
    world, registry = World(), Registry()
    registry.add(world.tools())
    return [(one.name, args, kwargs) for one, (args, kwargs) in _calls_of(code, registry)]


@pytest.mark.parametrize(
    ("code", "keys"),
    [
        ("get('a')\nget('b')", ["a", "b"]),
        ("x = 'a'\nget(x)\nx = 'b'\nget(x)", ["a", "b"]),
        ("get('a')\nget(other)\nget('c')", ["a", "c"]),
        ("get('a')\nif get('b'): get('c')", ["a"]),
        ("get('a') or get('b')\nget('c')", ["a"]),
        ("get('a') if get('b') else get('c')", ["b"]),
        ("get('a')\n[get('b') for _ in range(3)]\nget('c')", ["a"]),
        ("get('a')\nput('a', 5)\nget('a')", ["a"]),
        ("put('a', 5)\nget('a')\nget('b')", []),
        ("get('a')\nFINAL = 3\nraise ValueError\nget('b')", ["a"]),
        ("get('a')\ndef f(): return get('b')\nget('c')", ["a"]),
        ("get('a')\nget(key='b', default=2)", ["a", "b"]),
        ("get(*['a'])\nget('b')", ["b"]),
        ("get('a')\nget('a')\nget 'syntax", []),
        ("visit('u')\nprint(visit('v'))", ["u", "v"]),
        ("visit('u')\nx = y[0]\nvisit('v')\nget('a')", ["u", "a"]),
    ],
)
def test_only_calls_that_are_sure_to_be_made_are_fetched(code, keys):
    assert [args[0] for _, args, _ in found(code) if args] == keys


def test_named_arguments_are_sent_as_the_guest_sends_them():
    assert found("get(key='b', default=2)\nget('a', default=0)")[0] == ("get", ("b", 2), {})


def test_a_branch_that_is_not_taken_leaves_no_trace(pair):
    _, (world, env) = pair
    world.made.clear()
    turn = env.execute(
        "a = get('a')\nb = get('b')\nif a > 100:\n    get('never')\nelse:\n    get('else')"
    )
    assert [one.sizes["0"] for one in turn.calls] == [1, 1, 4]
    assert "never" not in world.made


def test_what_is_fetched_and_not_asked_for_is_in_no_log_and_no_ledger():
    with open_env(World(), parallel=True) as env:
        turn = env.execute("1 / 0\ngrep('entry 7')\npeek(100)")
        assert (turn.calls, env.coverage.scanned_share) == ((), 0)
        env.execute("grep('entry 7')\npeek(100)")
        assert env.coverage.scanned_share == 1


def test_a_change_that_a_reader_of_the_code_cannot_see_is_seen(pair):
    _, (_, env) = pair
    code = (
        "import builtins\ngetattr(builtins, 'pu' + 't')('k', 41)\nprint(get('k'))\nprint(get('k'))"
    )
    assert env.execute(code).observation == "41\n41"


def test_an_exception_is_raised_where_the_call_stands(pair):
    _, (_, env) = pair
    turn = env.execute("print('first')\nx = get('a')\ny = get('bad')\nprint('never')\nget('b')")
    assert turn.observation.startswith("first")
    assert "line 3" in turn.observation
    assert turn.result.error == "KeyError: 'bad'"
    assert [(one.outcome, one.prefetched) for one in turn.calls] == [
        ("ok", True),
        ("KeyError", True),
    ]


def test_a_tool_that_hangs_ends_with_its_cell(pair):
    _, (_, env) = pair
    turn = env.execute("meet('a')\nmeet('b')", timeout_ms=300)
    assert "TimeoutError" in turn.observation
    assert env.execute("get('a')\nget('b')").result.success


class Writer:
    """Writes random programs over the tools."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def program(self) -> str:
        lines = [line for _ in range(self._dice.randint(2, 7)) for line in self._statement()]
        return "v0 = v1 = v2 = 0\n" + "\n".join(lines) + "\n[v0, v1, v2]"

    def _statement(self) -> list[str]:
        name, call = f"v{self._dice.randrange(3)}", self._call()
        shapes = [
            [f"{name} = {call}"],
            [f"print({call})"],
            [f"{name} = {call} + {self._call()}"],
            [f"if v0 > {self._dice.randrange(5)}:", f"    {name} = {call}"],
            ["try:", f"    {name} = {call}", "except KeyError:", "    print('caught')"],
            [f"put({self._key()!r}, {self._dice.randrange(9)})"],
            [f"{name} = {call} if v1 else {self._call()}"],
            [f"for n in range(2): {name} = put('a', v0 + n) + {call}"],
            [f"k = {self._key()!r}", f"{name} = get(k)"],
            ["globals()['p' + 'ut' ] if 0 else CALL('put', 'b', v0 + 1)"],
            [f"{name} = len(grep('entry {self._dice.randrange(40)}:')) + len(peek(9))"],
        ]
        weights = [6, 3, 3, 2, 2, 2, 1, 1, 2, 1, 2]
        return self._dice.choices(shapes, weights)[0]

    def _call(self) -> str:
        key = self._key()
        shapes = [f"get({key!r})", f"aget({key!r})", f"CALL('get', {key!r}, 3)", "get(str(v0))"]
        return self._dice.choice([*shapes, f"tool_call('get', {{'key': {key!r}, 'default': 1}})"])

    def _key(self) -> str:
        return self._dice.choices(["a", "b", "c", "bad"], [5, 5, 5, 1])[0]


@pytest.mark.spec("R4.19")
@pytest.mark.parametrize("part", range(4))
def test_random_programs_cannot_tell_parallel_from_sequential(pair, part):
    """Compare values, output, errors, the log and what was seen, program by program."""
    fetched = 0
    for seed in range(part * PROGRAMS // 4, (part + 1) * PROGRAMS // 4):
        code, seen = Writer(seed).program(), []
        for world, env in pair:
            world.store.clear()
            turn = env.execute(code)
            fetched += sum(one.prefetched for one in turn.calls)
            log = [(one.tool, dict(one.sizes), one.outcome) for one in turn.calls]
            result = turn.result
            seen.append((result.value, result.stdout, result.error, log, dict(world.store)))
        assert seen[0] == seen[1], code
    assert fetched > PROGRAMS // 12, "the parallel one has run calls in parallel"

"""A state remembers its tier, and what is not served warm says why."""

from __future__ import annotations

import os
import sys

import pytest

import atoll
from atoll.config import SandboxConfig
from atoll.errors import UnsupportedError
from atoll.hosting.pool import Pool, PooledSandbox, PoolSettings
from atoll.policy import ExecutionPolicy, Mount
from atoll.state.envelope import describe_state, tier_of

OTHER = os.path.realpath("/usr/bin/python3")
OTHERS = os.path.exists(OTHER) and os.path.realpath(sys.executable) != OTHER
SMALL = ("import json",)
LARGE = (*SMALL, "import string as words")
DEFINES = {
    "a function": ("def f(): return words.digits", "f()"),
    "a lambda": ("f = lambda: words.digits", "f()"),
    "a method": ("class C:\n    def f(self): return words.digits\nc = C()", "c.f()"),
    "exec": ("words\ntext = 'found = words.digits'", "exec(text)\nfound"),
    "eval": ("words\ntext = 'words.digits'", "eval(text)"),
}


@pytest.fixture(scope="module")
def tiers():
    return PoolSettings(tiers={"small": SMALL, "large": LARGE}, parked=0)


async def run(pool, code, state=None):
    """What the REPL server does with a request: a fresh sandbox in a tier that the code chooses."""
    box = await pool.open(SandboxConfig(state=state), code)
    try:
        result = await box.execute(code)
        assert result.success, result
        return result.value, await box.save()
    finally:
        await box.destroy()


@pytest.mark.spec("R2.15")
async def test_a_restored_state_finds_the_names_that_were_preloaded(tiers):
    async with Pool(tiers) as pool:
        await pool.warm("small")
        for define, use in DEFINES.values():
            _, state = await run(pool, define)
            assert describe_state(state).tier == "large"
            value, again = await run(pool, use, state)
            assert value == "0123456789"
            assert tier_of(again) == "large"
        _, state = await run(pool, "x = 1")
        assert tier_of(state) == "small"


@pytest.mark.spec("R2.15")
async def test_functions_take_the_preloaded_modules_they_use_where_none_is_preloaded(tiers):
    define = "def f(): return [(lambda: words.digits)() for _ in 'x'][0]"
    async with Pool(tiers) as pool:
        _, state = await run(pool, define + "\ndef g(json): return json.dumps")
    async with atoll.aio.create_sandbox(backend="native", state=state) as box:
        assert (await box.execute("f()")).value == "0123456789"
        assert (await box.variables()).names == ["f", "g"]


@pytest.mark.spec("R2.15")
async def test_the_tier_of_a_state_is_the_least(tiers):
    async with Pool(tiers) as pool:
        await pool.warm("large")
        _, state = await run(pool, "def f(): return words")
        await pool.warm("small")
        for asked in (None, "small", "large"):
            config = SandboxConfig(state=state, preload=asked)
            assert [pool.tier(config, code) for code in (None, "f()", "1")] == ["large"] * 3


FACTS = "'words' in globals(), globals()['words'].digits, 'words' in dir()"
DELETED = "del words\ntry:\n    words\nexcept NameError as exc:\n    why = str(exc)\nwhy"


@pytest.mark.spec("R2.17", "R2.15")
async def test_preloaded_names_stand_in_globals_also_after_a_restore(tiers):
    async with Pool(tiers) as pool:
        await pool.warm("large")
        facts, state = await run(pool, FACTS)
        assert facts == (True, "0123456789", True)
        assert (await run(pool, FACTS, state))[0] == facts
        async with await pool.open(SandboxConfig(preload="large")) as box:
            await box.execute("import string\nown = 1")
            assert (await box.variables()).names == ["string", "own"]
            why = (await box.execute(DELETED)).value
            assert why == "name 'words' is not defined"
            state = await box.save()
        assert (await run(pool, "'words' in globals()", state))[0] is False
    async with atoll.aio.create_sandbox(backend="native", state=state) as box:
        assert (await box.execute("'words' in globals(), own")).value == (False, 1)


@pytest.mark.spec("R2.15")
async def test_a_cold_session_imports_preloaded_names_of_its_state_when_they_are_used(tiers):
    own = {"small": ("import json",), "large": ("import json", "import calendar as words")}
    async with Pool(PoolSettings(tiers=own, parked=0)) as pool:
        _, state = await run(pool, "words\ndef f(): return words.EPOCH")
    async with atoll.aio.create_sandbox(backend="native", state=state) as box:
        for code, value in (
            ("import sys; held = globals()['words']; 'calendar' in sys.modules", False),
            ("eval('words.EPOCH'), f(), held.EPOCH", (1970,) * 3),
            ("type(words).__name__, words is sys.modules['calendar']", ("module", True)),
            ("exec('found = words.__name__'); found, repr(held)[:9]", ("calendar", "<module '")),
        ):
            result = await box.execute(code)
            assert result.success, result
            assert result.value == value
        assert "words" not in (await box.variables()).names
        again = await box.save()
    async with atoll.aio.create_sandbox(backend="native", state=again) as box:
        for code in ("eval('words.EPOCH')", "f()", "held.EPOCH"):
            assert (await box.execute(code)).value == 1970


HOSTILE = """
class Key:
    def __hash__(self):
        if armed:
            globals().clear()
        return hash('words')
    def __eq__(self, other):
        globals().clear()
armed = False
globals()[Key()] = globals()[7] = 'x'
armed = own = True
"""


async def test_keys_of_the_namespace_that_are_no_names_are_left_alone(tiers):
    async with Pool(tiers) as pool, await pool.open(SandboxConfig(preload="large")) as box:
        assert (await box.execute("globals()[7] = 1\nown = 2")).success
        assert (await box.variables()).names == ["own"]
        await box.execute(HOSTILE)
        await box.variables()
        assert (await box.execute("6 * 7")).value == 42


async def test_a_tool_stands_before_a_preloaded_module_of_its_name(tiers):
    async with Pool(tiers) as pool:
        config = SandboxConfig(preload="large", tools={"words": words})
        async with await pool.open(config) as box:
            assert (await box.execute("words()")).value == "of the host"


def words() -> str:
    """Answer."""
    return "of the host"


async def test_code_that_makes_code_takes_the_largest_warm_tier(tiers):
    async with Pool(tiers) as pool:
        assert pool.tier(SandboxConfig(), "exec('1')") == "small"
        await pool.warm("small")
        assert pool.tier(SandboxConfig(), "exec('1')") == "small"
        await pool.warm("large")
        assert pool.tier(SandboxConfig(), "1") == "small"
        for code in ("exec('1')", "eval('1')", "def f(t): return eval(t)", "g = exec", "globals()"):
            assert pool.tier(SandboxConfig(), code) == "large"


async def test_a_tier_that_this_pool_has_not_is_no_fault(tiers):
    async with Pool(tiers) as pool:
        await pool.warm("large")
        _, state = await run(pool, "def f(): return words")
    async with Pool(PoolSettings(tiers={"only": LARGE}, parked=0)) as pool:
        assert (await run(pool, "f().digits", state))[0] == "0123456789"


async def test_what_is_not_served_warm_says_why(tiers, tmp_path):
    cases = {
        "a working folder of the host": {"workspace": tmp_path},
        "mounts": {"policy": ExecutionPolicy(mounts=(Mount(source=tmp_path, target="/d"),))},
        f"its interpreter is {OTHER}, the zygote's is ": {"python": OTHER},
    }
    if not OTHERS:
        cases.popitem()
    async with Pool(tiers) as pool:
        for why, options in cases.items():
            async with await pool.open(SandboxConfig(**options)) as box:
                result = await box.execute("1")
                assert why in result.cold_start
                with pytest.raises(UnsupportedError, match="started cold: "):
                    await box.fork()
        async with await pool.open(SandboxConfig()) as warm:
            assert (await warm.execute("1")).cold_start is None


@pytest.mark.parametrize("name", ["python", "python3", "elsewhere"])
def test_every_name_of_an_interpreter_is_the_same_one(tmp_path, name):
    venv = os.path.dirname(sys.executable)
    path = os.path.join(venv, name)
    if name == "elsewhere":
        path = str(tmp_path / "py")
        os.symlink(sys.executable, path)
    if not os.path.exists(path):
        pytest.skip(f"this environment has no {name}")
    pool = Pool(PoolSettings(tiers={"small": SMALL}))
    same = pool.why_cold(SandboxConfig(python=path)) is None
    assert same == (name != "elsewhere" or sys.prefix == sys.base_prefix)
    assert isinstance(PooledSandbox(SandboxConfig(), pool), PooledSandbox)

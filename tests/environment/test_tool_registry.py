"""One registry of tools: what is called, checked, listed and logged comes from it."""

from __future__ import annotations

import asyncio
import re

import pytest

import atoll
from atoll.agent.environment.tools.invocations import KEPT, Invocation, InvocationLog
from atoll.agent.environment.tools.registry import Registry
from atoll.sandbox.tools import by_name

TEXT = "".join(f"entry {n}: value {n * n}\n" for n in range(3000))


@atoll.tool(read_only=True)
def population(city: str, year: int = 2020, near: float | None = None) -> int:
    """Return how many people live in a city.

    Made up.
    """
    return len(city) * year


async def weather(city):
    """Tell the weather."""
    await asyncio.sleep(0)
    return f"rain in {city}"


@pytest.fixture(scope="module")
def env():
    with atoll.REPLEnvironment(
        backend="native",
        context=TEXT,
        tools=[population, weather],
        on_llm_query=lambda prompt: f"said {len(prompt)}",
    ) as found:
        yield found


def test_a_tool_is_made_of_a_function_and_is_called_as_one():
    assert population("Rome") == 4 * 2020
    assert (population.name, population.read_only) == ("population", True)
    assert population.summary == "Return how many people live in a city."
    assert population.call == (
        "population(city: 'str', year: 'int' = 2020, near: 'float | None' = None) -> 'int'"
    )
    other = atoll.tool(weather, name="forecast", description="Tell what comes.", cost="network")
    assert (other.name, other.summary, other.cost) == ("forecast", "Tell what comes.", "network")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"name": "no name"}, "must be a Python name"),
        ({"cost": "cheap"}, "no cost 'cheap'"),
        ({"allowed_callers": ("anyone",)}, "no caller 'anyone'"),
    ],
)
def test_a_wrong_fact_of_a_tool_is_told(facts, said):
    with pytest.raises(atoll.ConfigError, match=said):
        atoll.tool(weather, **facts)


def test_tools_of_one_name_are_refused():
    with pytest.raises(atoll.ConfigError, match="two tools 'weather'"):
        by_name([weather, weather])
    with pytest.raises(atoll.ConfigError, match="a tool cannot be called 'grep'"):
        atoll.REPLEnvironment(backend="native", tools={"grep": weather})


def test_a_sandbox_takes_functions_as_tools_too():
    with atoll.create_sandbox(backend="native", tools=[population, weather]) as box:
        assert box.execute("[population('Rome'), weather('Oslo')]").value == [8080, "rain in Oslo"]
        assert "Return how many people live" in box.execute("population.__doc__").value


@pytest.mark.spec("R4.7")
def test_tools_of_the_caller_are_called_by_name_with_checked_arguments(env):
    assert env.execute("[population('Rome'), weather('Oslo')]").result.value == [
        8080,
        "rain in Oslo",
    ]
    for call, said in (
        ("population(5)", "population: city must be str, not int: population(city"),
        ("population('a', near='b')", "near must be float or NoneType, not str"),
        ("population('a', True)", "year must be int, not bool"),
        ("call_host('population')", "missing a required argument: 'city'; call population(city"),
    ):
        assert said in env.execute(call).observation
    assert env.execute("population('a', near=1)").result.value == 2020


def test_the_list_of_functions_is_what_there_is(env):
    listed = env.tool_list()
    lines = listed.splitlines()
    assert (
        "- population(city: 'str', year: 'int' = 2020, near: 'float | None' = None) -> 'int': "
        in listed
    )
    assert any(line.startswith("- weather(city): Tell the weather.") for line in lines)
    assert any(line.startswith("- grep(pattern)") for line in lines)
    assert any(line.startswith("- llm_query(prompt), batch_llm_query") for line in lines)
    for hidden in ("web_fetch", "code_search", "archive_open", "rlm_query"):
        assert hidden not in listed, "there is nothing to fetch, to search or to ask"
    assert any(line.startswith("- doc_search(query, k=10): ") for line in lines)
    assert env.execute("SHOW_TOOLS()").observation == listed
    assert "population" not in env.tool_list(without=("population",))
    assert {one.name for one in env.tools} > {"web_fetch", "peek", "FINAL", "population"}
    assert "Return how many people live" in env.execute("help(population)").observation
    shown = " ".join(env.execute("help(grep)").observation.replace("'", "").split())
    assert re.search(r"grep\( ?first: Any = Ellipsis, ", shown)  # 3.14 breaks the line


def test_documents_and_hosts_bring_their_functions(tmp_path):
    web = atoll.WebPolicy(allow=("example.com",))
    env = atoll.REPLEnvironment(backend="native", documents=tmp_path, web=web)
    listed = env.tool_list()
    env.close()
    assert all(name in listed for name in ("web_fetch", "code_search", "archive_open"))


def test_every_call_is_logged_with_its_sizes_and_its_end():
    with atoll.REPLEnvironment(
        backend="native",
        context=TEXT,
        tools=[population],
        on_llm_query=lambda prompt: "five words are in here",
    ) as env:
        env.execute("grep('entry 7:')\nllm_query('a prompt of some words')")
        env.execute("try: population(5)\nexcept TypeError: pass\nbatch_llm_query(['x'] * 3)")
        log = env.invocations
    assert [(one.tool, one.parent, one.outcome) for one in log][:3] == [
        ("grep", "turn 1", "ok"),
        ("llm_query", "turn 1", "ok"),
        ("population", "turn 2", "TypeError"),
    ]
    assert log.counts() == {"grep": 1, "llm_query": 4, "population": 1}
    first, asked, *_ = log
    assert (first.sizes["0"], first.caller_type, first.chain_id, first.tokens_in) == (
        8,
        "code",
        None,
        0,
    )
    assert 4 <= asked.tokens_in <= 8
    assert 4 <= asked.tokens_out <= 8
    assert first.duration_ms > 0
    assert (log.explored, len(log)) == (1, 6)


def test_the_log_keeps_the_latest_and_counts_all():
    log = InvocationLog()
    for number in range(KEPT + 5):
        log.add(Invocation(tool="peek", sizes={"n": number}), explored=True)
    kept = list(log)
    assert (len(kept), len(log), log.explored) == (KEPT, KEPT + 5, KEPT + 5)
    assert kept[0].sizes == {"n": 5}


def test_a_summary_of_many_lines_stays_in_its_line():
    registry = Registry()
    registry.add([atoll.tool(weather, description="a  b\tc " + "x" * 999)])
    assert registry.listing().count("\n") == 0
    assert len(registry.listing()) < 300


@pytest.mark.spec("R4.24")
def test_an_environment_says_what_there_is_and_begins_again():
    with atoll.REPLEnvironment(backend="native", context=TEXT) as env:
        env.execute("found = grep('entry 7:')\nprint(found)\nFINAL(1)")
        state = env.get_state()
        assert (state["turns"], state["final"], state["calls"]) == (1, "1", {"grep": 1, "FINAL": 1})
        assert state["variables"]["found"].endswith("Hits")
        assert state["coverage"]["shown"] > 0
        env.reset()
        state = env.get_state()
        assert (state["turns"], state["final"], state["calls"]) == (0, None, {})
        assert "found" not in state["variables"]
        assert state["coverage"]["shown"] == 0
        assert env.execute("len(context)").result.value == len(TEXT)


@pytest.mark.spec("R4.25")
def test_spilled_output_is_read_by_its_short_name_and_by_its_path(tmp_path):
    with atoll.REPLEnvironment(backend="native", spill_dir=tmp_path) as env:
        path = env.execute("print('word ' * 9000)").spilled
        for name in ("spill/turn_1.txt", str(path)):
            assert env.execute(f"peek({name!r}, 9)").result.value == "word word"
            assert env.execute(f"grep({name!r}, 'word').total").result.value > 1
        outside = tmp_path / "other.txt"
        outside.write_text("hidden")
        assert "hidden" not in env.execute(f"peek({str(outside)!r}, 9)").observation


@pytest.mark.spec("R4.21")
def test_llm_call_without_a_worker_is_refused_in_words():
    with atoll.REPLEnvironment(backend="native") as env:
        assert "llm_call" not in env.tool_list()
        refused = env.execute("llm_call('x')").observation
    assert "PermissionError: llm_call is off here: there is no worker model" in refused

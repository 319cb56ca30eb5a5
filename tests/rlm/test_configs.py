"""SandboxConfig, EnvironmentConfig and RLMConfig: each has the one before it, and checks names."""

from __future__ import annotations

import pytest
from rlm_runs import TEXT, cell, script

import atoll
from atoll.agent.environment.options import configured

MISSPELT = {
    "create_sandbox": lambda: atoll.create_sandbox(bakend="native"),
    "SandboxConfig": lambda: atoll.SandboxConfig(bakend="native"),
    "REPLEnvironment": lambda: atoll.REPLEnvironment(document="x"),
    "EnvironmentConfig": lambda: atoll.EnvironmentConfig(ouput_cap=5),
    "RLM": lambda: atoll.RLM("replay/x", max_dpeth=1),
    "RLMConfig": lambda: atoll.RLMConfig(max_dpeth=1),
    "Budget": lambda: atoll.Budget(cals=5),
    "a dict of limits": lambda: atoll.RLM(str, budget={"iteration": 5}),
    "Tool": lambda: atoll.Tool(nme="x"),
    "tool": lambda: atoll.tool(str, read_onl=True),
    "WebPolicy": lambda: atoll.WebPolicy(alow=()),
    "ExecutionPolicy": lambda: atoll.ExecutionPolicy(memory_byte=5),
}


@pytest.mark.parametrize("what", MISSPELT)
def test_a_misspelt_keyword_is_told_with_the_nearest(what):
    with pytest.raises(atoll.ConfigError, match=r"unknown .* '\w+': did you mean '\w+'\?"):
        MISSPELT[what]()


WRONG = {
    "a list of fields": ({"submit_fields": ["x"]}, "submit_fields maps names to types"),
    "a type by its name": ({"submit_fields": {"x": "int"}}, r"not 'x': 'int'"),
    "a host for hosts": ({"web": "docs.python.org"}, "web must be a list of hosts"),
    "a number for a memory": ({"memory": 5}, "memory must be a file or an EpisodicMemory, not 5"),
    "a text for a switch": ({"parallel_tools": "yes"}, "must be True or False, not 'yes'"),
    "a number for a tool": ({"tools": {"x": 3}}, "the tool x must be a function, not 3"),
    "a number for tools": ({"tools": 3}, "tools must be a list of functions, not 3"),
    "a built-in as a tool": ({"tools": [len]}, "a tool cannot be called 'len': Python has"),
    "a built-in's name": ({"tools": {"isinstance": str}}, "cannot be called 'isinstance'"),
    "a keyword": ({"tools": {"import": str}}, "cannot be called 'import'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_value_of_the_wrong_type_is_told_before_anything_starts(what):
    options, said = WRONG[what]
    with pytest.raises(atoll.ConfigError, match=said):
        atoll.REPLEnvironment(backend="native", **options)
    if "tools" in options:
        with pytest.raises(atoll.ConfigError, match=said):
            atoll.create_sandbox(backend="native", **options)


def test_hosts_are_a_policy_of_the_web():
    assert atoll.EnvironmentConfig(web=["docs.python.org"]).web == atoll.WebPolicy(
        allow=("docs.python.org",)
    )


@pytest.mark.parametrize("make", [atoll.create_sandbox, atoll.REPLEnvironment])
def test_what_is_no_configuration_is_told_with_what_to_write(make):
    with pytest.raises(
        atoll.ConfigError, match=r"not an? .*Config: 'native'\. Write options by name"
    ):
        make("native")
    with pytest.raises(atoll.ConfigError, match=r"not an RLMConfig: 1\.0"):
        atoll.RLM(str, 1.0)


def test_an_environment_takes_a_sandboxs_configuration_and_keeps_it():
    made = configured(atoll.SandboxConfig(timeout_ms=5_000, backend="wasm"), {"output_cap": 9})
    assert (made.backend, made.timeout_seconds, made.output_cap) == ("wasm", 5, 9)
    assert atoll.REPLConfig is atoll.EnvironmentConfig


def test_a_run_takes_its_configurations_and_options_on_top():
    environment = atoll.EnvironmentConfig(backend="native", output_cap=500)
    config = atoll.RLMConfig(environment=environment, direct_tokens=1, budget={"calls": 3})
    model = script(*[cell("FINAL(len(context))")] * 2)
    answer = atoll.RLM(model, config).completion("How long?", TEXT)
    assert (answer.value, answer.way) == (len(TEXT), "loop")
    assert atoll.RLM(model, config, budget=0.5)._inner._config.budget.usd == 0.5
    with pytest.raises(atoll.ConfigError, match="context is not for a run's sandboxes"):
        atoll.RLMConfig(environment=atoll.EnvironmentConfig(context="x"))


@pytest.mark.spec("R4.23")
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 120),
        ({"context": "a text"}, 600),
        ({"documents": "."}, 600),
        ({"config": atoll.REPLConfig()}, 600),
        ({"timeout_seconds": 5}, 5),
        ({"context": "a text", "timeout_ms": 7_000}, 7),
    ],
)
def test_the_time_of_a_cell_follows_from_how_the_environment_is_made(given, seconds):
    assert configured(given.pop("config", None), given).timeout_seconds == seconds

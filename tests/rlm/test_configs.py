"""SandboxConfig, EnvironmentConfig and RLMConfig: each has the one before it, and checks names."""

from __future__ import annotations

import pytest
from rlm_runs import TEXT, cell, script

import atoll
from atoll.environment.options import configured

MISSPELT = {
    "create_sandbox": lambda: atoll.create_sandbox(bakend="native"),
    "SandboxConfig": lambda: atoll.SandboxConfig(bakend="native"),
    "REPLEnvironment": lambda: atoll.REPLEnvironment(document="x"),
    "EnvironmentConfig": lambda: atoll.EnvironmentConfig(ouput_cap=5),
    "RLM": lambda: atoll.RLM("replay/x", max_dpeth=1),
    "RLMConfig": lambda: atoll.RLMConfig(max_dpeth=1),
    "Budget": lambda: atoll.Budget(cals=5),
    "a dict of limits": lambda: atoll.RLM(str, budget={"iteration": 5}),
    "ExecutionPolicy": lambda: atoll.ExecutionPolicy(memory_byte=5),
}


@pytest.mark.parametrize("what", MISSPELT)
def test_a_misspelt_keyword_is_told_with_the_nearest(what):
    with pytest.raises(atoll.ConfigError, match=r"unknown .* '\w+': did you mean '\w+'\?"):
        MISSPELT[what]()


@pytest.mark.parametrize("make", [atoll.create_sandbox, atoll.REPLEnvironment])
def test_what_is_no_configuration_is_told_with_what_to_write(make):
    with pytest.raises(
        atoll.ConfigError, match=r"not a .*Config: 'native'\. Write options by name"
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

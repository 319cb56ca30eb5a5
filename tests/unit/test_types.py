"""What type checkers see exists; that misuse is found is shown by typing_cases and `make check`."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import atoll
import atoll.aio
from atoll.agent.environment.options import EnvironmentConfig, EnvironmentOptions
from atoll.agent.rlm.options import RLMConfig, RLMOptions
from atoll.factory import SandboxOptions


def imported_for_types(module):
    """The names that a module imports for type checkers alone."""
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for one in node.body:
                yield from ((alias.asname or alias.name, one.module) for alias in one.names)


def test_the_public_names_are_those_that_type_checkers_see():
    stub = ast.parse(Path(atoll.__file__).with_suffix(".pyi").read_text())
    imports = [one for one in stub.body if isinstance(one, ast.ImportFrom)]
    seen = {alias.asname: one.module for one in imports for alias in one.names}
    assert {"__version__", *seen} == set(atoll.__all__)
    for name in atoll.__all__:
        assert getattr(atoll, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Sandboxx'"):
        _ = atoll.Sandboxx


def test_the_async_names_are_those_that_type_checkers_see():
    seen = {name: home.removeprefix("atoll.") for name, home in imported_for_types(atoll.aio)}
    assert {name: seen[name] for name in atoll.aio._HOMES} == atoll.aio._HOMES
    for name in atoll.aio.__all__:
        assert getattr(atoll.aio, name) is not None


def test_options_are_the_fields_of_the_configuration():
    config = {field.name for field in dataclasses.fields(atoll.SandboxConfig)} | {"timeout_seconds"}
    assert set(SandboxOptions.__annotations__) == config
    own = {field.name for field in dataclasses.fields(EnvironmentConfig)}
    assert set(EnvironmentOptions.__annotations__) == config | own
    settings = {field.name for field in dataclasses.fields(RLMConfig)} - {"environment"}
    assert set(RLMOptions.__annotations__) == config | own | settings


@pytest.mark.parametrize("name", ["Mount", "Outcome", "Variable", "Variables", "FileInfo"])
def test_what_calls_take_and_return_is_exported(name):
    assert name in atoll.__all__
    assert name in dir(atoll)

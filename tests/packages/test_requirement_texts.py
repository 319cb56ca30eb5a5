"""Which texts name a package: nothing that pip would read as an option, a path or a URL."""

from __future__ import annotations

import pytest

from atoll.config import SandboxConfig
from atoll.errors import ConfigError
from atoll.text.requirements import name_of, normalise


def test_requirements_are_spelled_in_one_way():
    given = ["Typing_Extensions", "duckdb == 1.5", "pandas[Excel]<3 , >=2", "polars", "polars"]
    assert normalise(given) == ("duckdb==1.5", "pandas[excel]<3,>=2", "polars", "typing-extensions")
    assert name_of("pandas[excel]<3,>=2") == "pandas"
    assert normalise(['a; python_version < "3.9"']) == ('a; python_version < "3.9"',)
    assert normalise(["@data"]) == ("@data",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-r requirements.txt", "options of pip are not taken"),
        ("--index-url=http://evil.test", "options of pip are not taken"),
        ("evil @ http://evil.test/x.whl", "URLs are not taken"),
        ("git+https://evil.test/x", "URLs are not taken"),
        ("./evil.whl", "paths are not taken"),
        ("/tmp/evil.whl", "paths are not taken"),
        ("polars\n--index-url x", "write it as"),
        ("polars --pre", "write it as"),
        ("polars # comment", "write it as"),
        ("", "write it as"),
        ("a" * 400, "write it as"),
        ("@Bad Name", "URLs are not taken"),
    ],
)
def test_what_is_not_a_name_is_refused_in_words(text, why):
    with pytest.raises(ConfigError, match=why):
        SandboxConfig(packages=[text])


def test_a_single_text_is_not_taken_for_a_list():
    with pytest.raises(ConfigError, match=r"packages must be a list such as \[\"polars\"\]"):
        SandboxConfig(packages="polars")

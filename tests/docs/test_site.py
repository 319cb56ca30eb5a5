"""The tools that make the documentation: what they let through, and what they draw."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import atoll
from atoll import errors
from atoll.factory import SandboxOptions
from atoll.service.http import openapi

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield
    for name in ("site_check", "picture", "reference"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script defer src=//cdn.example/x.js></script>",
        '<img alt="a" src="http://cdn.example/a.png">',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link href="https://fonts.example" rel="preconnect" crossorigin>',
        "@import 'https://fonts.example/css';",
        "a { background: url(//cdn.example/a.png) }",
    ],
)
def test_what_a_page_would_load_from_another_host_is_found(tools, text):
    import site_check

    [address] = site_check.loaded_from_elsewhere(text)
    assert ".example" in address


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://example.org">a link to follow</a>',
        '<link rel="canonical" href="https://example.org/">',
        '<script src="assets/javascripts/bundle.js"></script>',
        "a { background: url(a.png) }",
        '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    ],
)
def test_links_and_local_files_are_not_found(tools, text):
    import site_check

    assert site_check.loaded_from_elsewhere(text) == []


def test_the_picture_escapes_what_programs_print_and_keeps_their_colours(tools):
    import picture

    drawn = picture.render([["$ run <x>", "\x1b[32mgood\x1b[0m & <b>"]])
    assert '<tspan class="typed">run &lt;x&gt;</tspan>' in drawn
    assert '<tspan class="good">good</tspan> &amp; &lt;b&gt;' in drawn


def test_every_command_in_a_picture_is_one_that_the_tool_runs(tools):
    import picture

    for name, steps in picture.PICTURES.items():
        drawn = (picture.ASSETS / f"{name}.svg").read_text()
        for step in steps:
            assert picture.escape(step.command) in drawn, "run tools/picture.py"


def test_the_page_on_sandboxes_names_every_option():
    page = (ROOT / "docs/sandbox.md").read_text()
    table = page.partition("## Options")[2].partition("A `policy` as a dict")[0]
    told = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)`", row.split("|")[1] if row else "")
    }
    options = {name for name in SandboxOptions.__annotations__ if name != "explored_length"}
    assert options - told == set()
    assert told - options == set()


def test_every_public_name_is_on_one_page_of_the_reference(tools):
    import reference

    named = [name for names in reference.PYTHON.values() for name in names.split()]
    public = {name for name in atoll.__all__ if not hasattr(errors, name)}
    assert sorted(named) == sorted(public - {"__version__", "aio"})


def test_the_reference_of_the_service_has_its_operations_and_their_shapes(tools):
    import reference

    paths = openapi.document()["paths"]
    page = reference.http_page(openapi.document())
    own = [path for path in paths if path.startswith("/api/v1")]
    headings = re.findall(r"^## [A-Z]+ (/.*)$", page, re.MULTILINE)
    assert set(headings) == {path.removeprefix("/api/v1") for path in own}
    anchors = {name.lower() for name in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= anchors
    assert "| `code` | string | needed |" in page

"""The page for those who have an error before them: it names all of them, and quotes them rightly."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import atoll
from atoll import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
SERVICE = ROOT / "src/atoll/service"
CODE = re.compile(r'Problem\(\s*\d+,\s*"(\w+)"')
OF_OTHERS = {"dialects", "console"}
"""Rooms whose codes are those of another API, or of the console."""


def test_it_names_every_error_and_every_kind_of_end():
    named = set(re.findall(r"`(\w+)`", PAGE))
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.AtollError)
    }
    assert raised - named == {"AtollError", "SandboxError"}  # the bases of the others
    assert {str(kind) for kind in atoll.Outcome} - named == {"ok"}


def test_every_code_of_the_service_is_in_the_table_of_its_page():
    table = (ROOT / "docs/service.md").read_text().partition("## Errors")[2]
    files = [file for file in SERVICE.rglob("*.py") if not OF_OTHERS & set(file.parts)]
    codes = {code for file in files for code in CODE.findall(file.read_text())}
    assert codes - set(re.findall(r"`(\w+)`", table)) == set()


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(10**9)",
        "open('large', 'wb').write(bytes(30 << 20))",
        "import urllib.request as u; u.urlopen('https://example.org')",
        "import no_such_module",
        "input()",
        "import os; os._exit(3)",
        "import sys; sys.exit(3)",
        "import ctypes; ctypes.string_at(0)",
        "while True: pass",
    ],
)
def test_the_words_of_an_error_lead_to_its_row(code):
    policy = {"memory_bytes": 200 << 20, "disk_bytes": 10 << 20}
    with atoll.create_sandbox(backend="native", policy=policy, timeout_ms=5_000) as box:
        result = box.execute(code, timeout_ms=200) if "while" in code else box.execute(code)
    rows = [row.split("|")[1:3] for row in PAGE.splitlines() if row.startswith("| `")]
    quotes = [
        quote
        for kind, words in rows
        if kind.strip() == f"`{result.kind}`"
        for text in re.findall(r"`([^`]+)`", words)
        for quote in re.split(r" *\.\.\.|'\w'", text)
        if len(quote) > len("Error")
    ]
    assert any(quote in result.error for quote in quotes), (result.error, quotes)


@pytest.mark.parametrize(
    "options", [{"backend": "docker"}, {"state": b"x"}, {"image": "oci:/no/such/folder"}]
)
def test_an_error_at_the_start_is_one_of_its_rows(options):
    with pytest.raises(errors.AtollError) as caught:
        atoll.create_sandbox(**options)
    assert f"| `{type(caught.value).__name__}` |" in PAGE

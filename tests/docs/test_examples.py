"""The examples in README and docs are run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!http)([^)#]+)\)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, code in enumerate(BLOCK.findall(page.read_text()), 1)
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs_as_it_stands(code, tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(tmp_path / "daemon.sock"))
    monkeypatch.setenv("REPL_WARMUP_TIMEOUT_SECONDS", "60")  # a machine full of tests is slow
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_demo_does_its_job():
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "services with errors: ['billing', 'mail', 'search']" in done.stdout
    assert "isolation jailed" in done.stdout
    assert "TimeoutError: the execution took longer than 2000 ms" in done.stdout


def test_decisions_are_short():
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        assert len(page.read_text().splitlines()) <= 40, page.name


def test_the_page_of_the_command_line_is_what_its_help_says():
    done = subprocess.run(
        [sys.executable, "-c", "import cli_doc; print(cli_doc.render())"],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == (ROOT / "docs" / "cli.md").read_text().split(), "run make docs"

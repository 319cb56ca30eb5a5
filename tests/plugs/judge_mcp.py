"""`atoll mcp` judged by the authors' conformance suite and by the command line of MCP Inspector.

npm installs both, and a Node that is new enough, by name into $ATOLL_CACHE.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from atoll.config import cache_folder

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
"""The first that knows revision 2026-07-28; npm calls an older one the newest."""
PACKAGES = (SUITE, "@modelcontextprotocol/inspector", "node@22")
ANY_SERVER = {
    "2025-11-25": """server-initialize ping completion-complete tools-list tools-call-simple-text
        tools-call-error server-sse-multiple-streams resources-list resources-subscribe
        resources-unsubscribe prompts-list dns-rebinding-protection server-session-lifecycle""",
    "2026-07-28": """completion-complete tools-list tools-call-simple-text tools-call-error
        server-sse-multiple-streams resources-list sep-2164-resource-not-found prompts-list
        dns-rebinding-protection caching http-header-validation
        input-required-result-missing-input-response input-required-result-unsupported-methods
        input-required-result-ignore-extra-params input-required-result-validate-input""",
}
"""Scenarios that need no tool, resource or prompt of the suite's own sample server."""
SAMPLE_SERVER = """tasks-lifecycle tasks-capability-negotiation tasks-wire-fields tasks-request-headers
    tasks-request-state-removal tasks-dispatch-and-envelope""".split()
"""Scenarios whose sample tools `conformance_server` has, behind Atoll's tasks and HTTP."""
NEED_SAMPLE_TOOL = {
    "sep-2575-server-rejects-undeclared-capability",
    "sep-2575-missing-capability-http-400",
}
"""Checks of server-stateless that call a tool of the sample server; the other 26 apply."""
ATOLL = (sys.executable, "-m", "atoll.cli.main", "mcp", "--tier", "bare")


@pytest.fixture(scope="session")
def tools():
    folder = cache_folder() / "npm-conformance-0.2.0-alpha.12"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / ".bin" / "conformance").exists():
        install = ["npm", "install", "--no-fund", "--no-audit", "--silent", *PACKAGES]
        subprocess.run(install, cwd=folder, check=True, timeout=300)
    return folder / "node_modules" / ".bin"


@contextlib.contextmanager
def serving(*command):
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        yield re.search(r"http://\S+", process.stderr.readline())[0]
        process.terminate()


@pytest.fixture(scope="module")
def url():
    with serving(*ATOLL, "--http", "--port", "0", "--no-token") as address:
        yield address


@pytest.fixture(scope="module")
def sample_url():
    with serving(sys.executable, Path(__file__).with_name("conformance_server.py")) as address:
        yield address


def judged(tools, url, scenario, *options):
    """Return the ids of the checks of a scenario that failed, and how many passed."""
    with tempfile.TemporaryDirectory() as folder:
        given = ["server", "--url", url, "--scenario", scenario, "-o", folder, *options]
        command = [tools / "node", tools / "conformance", *given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        [report] = Path(folder).rglob("checks.json")
        checks = json.loads(report.read_text())
    states = [(one["id"], one["status"]) for one in checks]
    passed = sum(state == "SUCCESS" for _, state in states)
    return {name for name, state in states if state == "FAILURE"}, passed, done.stdout


@pytest.mark.parametrize(
    ("revision", "scenario"),
    [(revision, one) for revision, some in ANY_SERVER.items() for one in some.split()],
)
def test_the_conformance_suite(tools, url, revision, scenario):
    failed, passed, said = judged(tools, url, scenario, "--spec-version", revision)
    assert (failed, passed > 0) == (set(), True), said


def test_every_check_of_a_server_without_state_that_needs_no_sample_tool(tools, url):
    failed, passed, said = judged(tools, url, "server-stateless", "--spec-version", "2026-07-28")
    assert failed <= NEED_SAMPLE_TOOL, said
    assert passed >= 24, said


@pytest.mark.parametrize("scenario", SAMPLE_SERVER)
def test_the_tasks_extension(tools, sample_url, scenario):
    failed, passed, said = judged(tools, sample_url, scenario)
    assert (failed, passed > 0) == (set(), True), said


def inspect(tools, *arguments):
    command = [tools / "node", tools / "mcp-inspector", "--cli", *ATOLL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_inspector_lists_and_calls(tools):
    listed = inspect(tools, "--method", "tools/list")["tools"]
    assert {"run_python", "run_shell", "fork"} <= {one["name"] for one in listed}
    given = ("--tool-name", "run_python", "--tool-arg", "code=6*7")
    result = inspect(tools, "--method", "tools/call", *given)
    assert result["content"] == [{"type": "text", "text": "42"}]

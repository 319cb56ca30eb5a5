"""`atoll mcp` judged by the authors' conformance suite and by the command line of MCP Inspector.

npm installs both, and a Node that is new enough, by name into $ATOLL_CACHE.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from atoll.config import cache_folder

PACKAGES = ("@modelcontextprotocol/conformance", "@modelcontextprotocol/inspector", "node@22")
ABOUT_ANY_SERVER = (
    "server-initialize", "ping", "tools-list", "resources-list", "prompts-list",
    "server-sse-multiple-streams", "dns-rebinding-protection",
)  # fmt: skip
"""Scenarios that call no tool, resource or prompt of the suite's own sample server."""
ATOLL = (sys.executable, "-m", "atoll.cli.main", "mcp", "--tier", "bare")


@pytest.fixture(scope="session")
def tools():
    folder = cache_folder() / "npm"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / ".bin" / "conformance").exists():
        install = ["npm", "install", "--no-fund", "--no-audit", "--silent", *PACKAGES]
        subprocess.run(install, cwd=folder, check=True, timeout=300)
    return folder / "node_modules" / ".bin"


@pytest.fixture(scope="module")
def url():
    command = [*ATOLL, "--http", "--port", "0", "--no-token"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        yield re.search(r"http://\S+", serving.stderr.readline())[0]
        serving.terminate()


@pytest.mark.parametrize("scenario", ABOUT_ANY_SERVER)
def test_the_conformance_suite(tools, url, scenario):
    command = [
        tools / "node",
        tools / "conformance",
        "server",
        "--url",
        url,
        "--scenario",
        scenario,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Passed: (\d+)/\1, 0 failed", done.stdout), done.stdout


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

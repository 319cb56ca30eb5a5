"""The tutorial's agent, as a reader copies it, with a scripted model in the place of a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from test_examples import ROOT, examples_of

PAGE = ROOT / "docs" / "tutorial.md"
SCRIPT = {
    "Plot the totals": (
        "import csv\nimport matplotlib.pyplot as plt\n"
        "rows = list(csv.DictReader(open('sales.csv')))\n"
        "plt.bar([r['day'] for r in rows], [int(r['total']) for r in rows])\n"
        "print(max(rows, key=lambda row: int(row['total']))['day'])"
    ),
    "Is there a file": "import os; os.path.exists('sales.csv'), 'rows' in globals()",
    "Which service failed": "[line for line in context.splitlines() if 'ERROR' in line]",
    "How much memory": "import humanize; humanize.naturalsize(1 << 30)",
    "What is 6": "6 * 7",
}
"""The beginning of a user's text, and the code that the model answers with."""


class Model(BaseHTTPRequestHandler):
    """Answers a user with code, and what the tool returned with its own words."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer secret"
        assert asked["tools"][0]["function"]["name"] == "python"
        last = asked["messages"][-1]
        if last["role"] == "user":
            code = next(code for start, code in SCRIPT.items() if last["content"].startswith(start))
            arguments = json.dumps({"code": code})
            call = {
                "id": "1",
                "type": "function",
                "function": {"name": "python", "arguments": arguments},
            }
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        else:
            message = {"role": "assistant", "content": f"It says: {last['content']}"}
        body = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def model():
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def example(mention: str) -> str:
    """Return the one Python example of the page that mentions a text."""
    [code] = [one.code for one in examples_of(PAGE.read_text()) if mention in one.code]
    return code


def run(code: str, folder: Path, model: str, **environment: str) -> str:
    (folder / "agent.py").write_text(example("class Chat"))
    variables = {**os.environ, "OPENAI_BASE_URL": model, "OPENAI_API_KEY": "secret", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_agent_is_forty_lines():
    assert len(example("class Chat").splitlines()) <= 40


def test_two_users_plot_a_file_and_do_not_see_each_other(tmp_path, model):
    said = run(example("anna, ben"), tmp_path, model)
    assert said.splitlines() == ["It says: wed", "It says: (False, False)"]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_code_finds_the_line_of_a_large_log(tmp_path, model):
    said = run(example("500_000"), tmp_path, model)
    assert said == "It says: ['12:09:59 service-4 ERROR disk full']\n"


@pytest.mark.long
def test_limits_and_packages(tmp_path, model):
    assert run(example("max_processes"), tmp_path, model) == "It says: '1.1 GB'\n"


def test_the_same_agent_against_a_service(tmp_path, model, own_service):
    own_service.start()
    way = {"ATOLL_URL": own_service.url, "ATOLL_API_KEY": own_service.key}
    assert run(example("ATOLL_URL"), tmp_path, model, **way) == "It says: 42\n"

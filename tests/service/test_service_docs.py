"""The shell commands of docs/service.md run as they stand, in one shell, against a service."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from atoll.service.access.keys import Quota
from atoll.service.http import problems

ROOT = Path(__file__).resolve().parents[2]


def test_the_commands_of_the_page_run(service, api):
    text = (ROOT / "docs" / "service.md").read_text()
    fences = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    script = "set -e -o pipefail\n" + "\n".join(one for one in fences if "export" not in one)
    script = re.sub(r"^atoll ", f"{sys.executable} -m atoll.cli.main ", script, flags=re.MULTILINE)
    key = api.headers["authorization"].removeprefix("Bearer ")
    env = {**os.environ, "ATOLL_URL": service.url, "ATOLL_API_KEY": key, "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert '"stdout":"42\\n"' in done.stdout
    assert '"value":6' in done.stdout
    assert '"output":"6 in.txt\\n"' in done.stdout
    assert '"type":"result"' in done.stdout


def test_the_page_names_every_code_of_the_native_api_and_no_other():
    text = (ROOT / "docs" / "service.md").read_text()
    rows = re.findall(r"^\| [\d, ]+ \| (.*?) \|", text.partition("## Errors")[2], re.MULTILINE)
    named = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    used = {code for _, _, code in problems._STATUSES} | {"sandbox"}
    for path in (ROOT / "src" / "atoll" / "service").rglob("*.py"):
        if {"dialects", "console"} & set(path.parts):
            continue
        used |= set(_codes(ast.parse(path.read_text())))
    assert "file" in used
    assert named == used


def test_the_page_names_every_quota():
    text = (ROOT / "docs" / "service.md").read_text()
    table = text.partition("| quota | default | limits |")[2].partition("\n\n")[0]
    listed = "".join(line.split("|")[1] for line in table.splitlines() if line)
    assert set(re.findall(r"`(\w+)`", listed)) == set(Quota.__dataclass_fields__)


def _codes(tree):
    for node in ast.walk(tree):
        is_problem = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem"
        if is_problem and isinstance(node.args[1], ast.Constant):
            yield node.args[1].value

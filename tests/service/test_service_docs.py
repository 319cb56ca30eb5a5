"""The shell commands of docs/service.md run as they stand, in one shell, against a service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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

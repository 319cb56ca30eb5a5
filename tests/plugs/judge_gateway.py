"""The Jupyter gateway judged by Open WebUI's client class and by jupyter_server's gateway client.

The class is that of the newest wheel, unmodified; of Open WebUI itself only two settings are given.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
import uuid

import pytest
from pages import run_example
from serving import atoll_serve, new_key
from websockets.sync.client import connect

SETTINGS = types.ModuleType("open_webui.env")
SETTINGS.AIOHTTP_CLIENT_ALLOW_REDIRECTS = SETTINGS.ENABLE_ORJSON = False
sys.modules["open_webui.env"] = SETTINGS
from open_webui.utils.code_interpreter import execute_code_jupyter  # noqa: E402 - after its settings

TOKEN = uuid.uuid4().hex
SECONDS = 100


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    with atoll_serve(folder) as url:
        os.environ |= {"ATOLL_URL": url, "ATOLL_API_KEY": new_key(folder)}
        yield f"{url}/jupyter", os.environ["ATOLL_API_KEY"]


@pytest.fixture(scope="session")
def jupyter(service, tmp_path_factory):
    """A server as JupyterLab starts it, whose kernels are the gateway's."""
    url, key = service
    command = [
        sys.executable, "-m", "jupyter_server", "--gateway-url", url, "--no-browser", "--port", "0",
        f"--GatewayClient.auth_token={key}", f"--IdentityProvider.token={TOKEN}", "--allow-root",
        f"--ServerApp.root_dir={tmp_path_factory.mktemp('notebooks')}",
    ]  # fmt: skip
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **out) as serving:
        for line in serving.stdout:
            if found := re.search(r"http://(?:localhost|127[\d.]+):\d+/", line):
                break
        url, until = found[0].rstrip("/"), time.monotonic() + SECONDS
        while not answers(url) and time.monotonic() < until:  # it tells its address too early
            time.sleep(0.2)
        yield url
        serving.terminate()


def answers(url):
    try:
        return bool(ask(f"{url}/api"))
    except OSError:
        return False


def ask(url, method="GET", body=None, token=TOKEN):
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"token {token}"}
    asked = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
        text = answer.read()
    return json.loads(text) if text else None


async def test_open_webui_runs_code(service):
    url, key = service
    code = "import sys; print('out'); print('err', file=sys.stderr); 6 * 7"
    found = await execute_code_jupyter(url, code, key, timeout=SECONDS)
    assert found == {"stdout": "out", "stderr": "err", "result": "42"}
    found = await execute_code_jupyter(url, "1 / 0", key, timeout=SECONDS)
    assert found["stderr"].startswith("Traceback")
    assert found["stderr"].endswith("ZeroDivisionError: division by zero")
    image = "class P:\n def _repr_png_(self): return b'\\x89PNG'\nP()"
    found = await execute_code_jupyter(url, image, key, timeout=SECONDS)
    assert "data:image/png;base64,iVBORw==" in found["result"]


async def test_open_webui_leaves_no_kernel_and_is_refused_without_a_key(service):
    url, key = service
    await execute_code_jupyter(url, "import time; time.sleep(60)", key, timeout=1)
    assert await asyncio.to_thread(ask, f"{url}/api/kernels?token={key}", token=key) == []
    for wrong in ("", key[:-1] + "!"):
        found = await execute_code_jupyter(url, "1", wrong, timeout=SECONDS)
        assert found["stderr"].startswith("Error: 401")


@pytest.fixture
def kernel(jupyter):
    assert ask(f"{jupyter}/api/kernelspecs")["default"] == "python3"
    made = ask(f"{jupyter}/api/kernels", "POST", {"name": "python3"})
    yield f"{jupyter}/api/kernels/{made['id']}"
    with contextlib.suppress(urllib.error.HTTPError):
        ask(f"{jupyter}/api/kernels/{made['id']}", "DELETE")


class Lab:
    """What JupyterLab does with a kernel, through its own server."""

    def __init__(self, kernel):
        url = f"{kernel.replace('http', 'ws', 1)}/channels?token={TOKEN}"
        self.opened = connect(url, proxy=None)
        self.socket = self.opened.__enter__()

    def send(self, kind, channel="shell", **content):
        header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": "s", "username": "u"}
        empty = {"parent_header": {}, "metadata": {}, "buffers": []}
        message = {"channel": channel, "header": header, "content": content, **empty}
        self.socket.send(json.dumps(message))
        return header["msg_id"]

    def next(self):
        return json.loads(self.socket.recv(SECONDS))

    def run(self, code):
        ident, told = self.send("execute_request", code=code), []
        while not told or told[-1]["content"].get("execution_state") != "idle":
            one = self.next()
            if one["parent_header"].get("msg_id") == ident:
                told.append(one)
        return "".join(
            one["content"].get("text") or one["content"].get("ename")
            or one["content"].get("data", {}).get("text/plain", "")
            for one in told if one["channel"] == "iopub"
        )  # fmt: skip


def test_jupyterlab_runs_interrupts_restarts_and_ends_a_kernel(kernel):
    lab = Lab(kernel)
    assert lab.run("x = 6; print('hi')") == "hi\n"
    assert lab.run("x * 7") == "42"
    ident = lab.send("execute_request", code="print('go', flush=True)\nwhile True: pass")
    while lab.next()["content"].get("text") != "go\n":
        pass
    ask(f"{kernel}/interrupt", "POST")
    while True:
        one = lab.next()
        if one["parent_header"].get("msg_id") == ident and one["msg_type"] == "error":
            break
    assert one["content"]["ename"] == "KeyboardInterrupt"
    assert lab.run("x") == "6"
    ask(f"{kernel}/restart", "POST")
    lab.opened.__exit__(None, None, None)
    lab = Lab(kernel)
    assert lab.run("x") == "NameError"
    lab.opened.__exit__(None, None, None)
    ask(kernel, "DELETE")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(kernel)


def test_the_example_of_the_page_runs(service, tmp_path, monkeypatch, capsys):
    assert service
    monkeypatch.chdir(tmp_path)
    run_example("gateway")
    assert capsys.readouterr().out == "hello\n42\n"

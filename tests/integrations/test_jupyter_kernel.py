"""The Jupyter kernel, asked by jupyter_client: cells, displays, errors, interrupt, magics."""

from __future__ import annotations

import json
import sys

import pytest
from jupyter_client.manager import KernelManager

from atoll.integrations import jupyter_kernel

SECONDS = 60


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jupyter")
    installed = jupyter_kernel.install_spec(prefix=folder)
    given = json.loads((installed / "kernel.json").read_text())
    assert given["argv"][0] == sys.executable
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "share" / "jupyter"))
        patch.setenv("ATOLL_KERNEL_OPTIONS", json.dumps({"preload": "bare"}))
        manager = KernelManager(kernel_name="atoll")
        manager.start_kernel()
        asking = manager.blocking_client()
        asking.start_channels()
        asking.wait_for_ready(timeout=SECONDS)
        yield asking
        asking.stop_channels()
        manager.shutdown_kernel()
    assert jupyter_kernel.remove_spec(prefix=folder)
    assert not jupyter_kernel.remove_spec(prefix=folder)


def run(client, code, **options):
    shown = []
    reply = client.execute_interactive(code, timeout=SECONDS, output_hook=shown.append, **options)
    return reply["content"], [(one["msg_type"], one["content"]) for one in shown]


def text_of(client, code):
    reply, shown = run(client, code)
    assert reply["status"] == "ok", reply
    return "".join(
        one["data"]["text/plain"] if kind == "execute_result" else one.get("text", "")
        for kind, one in shown
    )


def test_cells_keep_variables_and_show_streams_values_and_displays(client):
    code = "import os, sys; x = 6; print('out'); print('err', file=sys.stderr); x * 7"
    reply, shown = run(client, code)
    kinds = {kind: one for kind, one in shown if kind != "status"}
    assert reply["status"] == "ok"
    assert kinds["execute_result"]["data"]["text/plain"] == "42"
    streams = {one["name"]: one["text"] for kind, one in shown if kind == "stream"}
    assert streams == {"stdout": "out\n", "stderr": "err\n"}
    assert text_of(client, "import getpass; getpass.getuser(), x") == "('guest', 6)"
    rich = "class P:\n def _repr_html_(self): return '<b>1</b>'\n def _repr_png_(self): return b'\\x89PNG'\nP()"
    _, shown = run(client, rich)
    found = {kind: one["data"] for kind, one in shown if "data" in one}
    assert found["execute_result"]["text/html"] == "<b>1</b>"
    assert found["display_data"] == {"image/png": "iVBORw=="}


def test_an_error_has_its_traceback_once_and_user_expressions_are_answered(client):
    reply, shown = run(client, "def f(): 1/0\nf()", stop_on_error=False)
    assert (reply["ename"], reply["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert reply["traceback"][0] == "Traceback (most recent call last):"
    assert [kind for kind, _ in shown if kind in ("stream", "error")] == ["error"]
    reply, _ = run(client, "y = 3", user_expressions={"twice": "y * 2", "bad": "nope"})
    assert reply["user_expressions"]["twice"]["data"] == {"text/plain": "6"}
    assert reply["user_expressions"]["bad"]["status"] == "error"


def test_an_interrupt_stops_the_cell_and_keeps_variables(client):
    run(client, "kept = 1")
    code = "print('go', flush=True)\nimport time\nwhile True: time.sleep(0.01)"
    number = client.execute(code, stop_on_error=False)  # or a cell sent right after it is aborted
    while client.get_iopub_msg(timeout=SECONDS)["content"].get("text") != "go\n":
        pass
    client.control_channel.send(client.session.msg("interrupt_request", {}))
    reply = client.get_shell_msg(timeout=SECONDS)
    assert reply["parent_header"]["msg_id"] == number
    assert reply["content"]["status"] == "error"
    assert text_of(client, "kept") == "1"


def test_completion_inspection_history_and_is_complete(client):
    run(client, "some_long_name = [1]")
    reply = client.complete("some_lon", 8, reply=True, timeout=SECONDS)["content"]
    assert (reply["matches"], reply["cursor_start"]) == (["some_long_name"], 0)
    reply = client.complete("x = some_long_name.appe", reply=True, timeout=SECONDS)["content"]
    assert reply["matches"] == ["some_long_name.append"]
    reply = client.inspect("len(", 3, reply=True, timeout=SECONDS)["content"]
    assert "number of items" in reply["data"]["text/plain"]
    assert not client.inspect("nothing_such", 4, reply=True, timeout=SECONDS)["content"]["found"]
    for code, status in (("1", "complete"), ("if x:\n  y", "incomplete"), ("1 +* 2", "invalid")):
        client.is_complete(code)
        assert client.get_shell_msg(timeout=SECONDS)["content"]["status"] == status
    past = client.history(hist_access_type="tail", n=1, reply=True, timeout=SECONDS)["content"]
    assert past["history"][0][2] == "some_long_name = [1]"


def test_magics_fork_check_point_and_take_no_file_of_the_host(client):
    run(client, "z = 1")
    assert text_of(client, "%checkpoint before") == "checkpoint before\n"
    run(client, "z = 2")
    assert text_of(client, "%fork b") == "cells run in b; others: main\n"
    run(client, "z = 3; open('note.txt', 'w').write('abc')")
    assert text_of(client, "%context note.txt") == "context: 3 characters\n"
    assert text_of(client, "z, context") == "(3, 'abc')"
    text_of(client, "%fork main")
    assert text_of(client, "z") == "2"
    text_of(client, "%rollback before")
    assert text_of(client, "z") == "1"
    for wrong in ("%rollback nope", "%context /etc/hostname", "%context ../../etc/hostname"):
        assert run(client, wrong, stop_on_error=False)[0]["status"] == "error"

"""E2B's dialect judged by the unmodified SDKs `e2b` and `e2b-code-interpreter`, against `atoll serve`."""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request

import pytest
from e2b import AsyncSandbox as PlainAsyncSandbox
from e2b import (
    CommandExitException,
    FileType,
    NotFoundException,
    PtySize,
    SandboxException,
    SandboxQuery,
)
from e2b import Sandbox as PlainSandbox
from e2b.exceptions import AuthenticationException, SandboxNotRunningException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox
from pages import run_example
from serving import atoll_serve, new_key


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    with atoll_serve(folder) as url:
        os.environ |= {
            "E2B_API_URL": f"{url}/e2b", "E2B_SANDBOX_URL": f"{url}/e2b",
            "E2B_API_KEY": new_key(folder),
        }  # fmt: skip
        yield folder


@pytest.fixture(scope="module")
def box(service):
    with Sandbox.create() as made:
        yield made


def test_state_and_the_last_expression(box):
    box.run_code("x = 20")
    done = box.run_code("x + 22")
    assert done.text == "42"
    assert done.results[0].is_main_result
    assert done.error is None
    assert done.execution_count >= 2


def test_callbacks_hear_output_results_and_errors(box):
    out, err, results, errors = [], [], [], []
    code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\n'text'"
    done = box.run_code(code, on_stdout=out.append, on_stderr=err.append, on_result=results.append)
    assert "".join(one.line for one in out) == "a\n"
    assert "".join(one.line for one in err) == "b\n"
    assert [one.text for one in results] == ["text"]
    assert done.logs.stdout == [one.line for one in out]
    failed = box.run_code("1 / 0", on_error=errors.append)
    assert failed.error.name == "ZeroDivisionError"
    assert failed.error.value == "division by zero"
    assert "1 / 0" in failed.error.traceback
    assert errors == [failed.error]


def test_output_arrives_while_the_cell_runs(box):
    heard = []
    code = "import time\nprint('first', flush=True)\ntime.sleep(1)\nprint('last')"
    box.run_code(code, on_stdout=lambda one: heard.append((time.monotonic(), one.line)))
    assert heard[-1][0] - heard[0][0] > 0.5


def test_envs_of_one_cell(box):
    read = "import os; os.environ.get('COLOUR')"
    assert box.run_code(read, envs={"COLOUR": "red"}).text == "red"
    assert box.run_code(read).text is None


def test_bash_as_a_language(box):
    assert box.run_code("echo $((6 * 7))", language="bash").logs.stdout == ["42\n"]
    with pytest.raises(SandboxException, match="not served"):
        box.run_code("1", language="r")


def test_a_figure_is_a_png(box):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    done = box.run_code(code)
    if done.error is not None and done.error.name == "ModuleNotFoundError":
        pytest.skip("the tier has no matplotlib")
    assert any(one.png and one.png.startswith("iVBOR") for one in done.results)


def test_a_data_frame_is_html_with_its_text_as_the_result(box):
    done = box.run_code("import pandas as pd\npd.DataFrame({'column': [1]})")
    if done.error is not None and done.error.name == "ModuleNotFoundError":
        pytest.skip("the tier has no pandas")
    assert "column" in done.text
    assert any(one.html and "<table" in one.html for one in done.results)


def test_a_timeout_ends_the_cell(box):
    with pytest.raises(TimeoutException):
        box.run_code("while True: pass", timeout=1)
    assert box.run_code("1 + 1").text == "2"


def test_contexts_have_variables_of_their_own(box):
    box.run_code("who = 'default'")
    context = box.create_code_context(cwd="/tmp")
    assert box.run_code("who = 'second'\nwho", context=context).text == "second"
    assert box.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert box.run_code("who").text == "default"
    assert context.id in [one.id for one in box.list_code_contexts()]
    box.restart_code_context(context)
    assert box.run_code("who", context=context).error.name == "NameError"
    box.remove_code_context(context)
    with pytest.raises(NotFoundException):
        box.run_code("1", context=context)


def test_restarting_the_default_context_keeps_files(box):
    box.run_code("kept = 1\nopen('kept.txt', 'w').write('yes')")
    box.restart_code_context("default")
    assert box.run_code("kept").error.name == "NameError"
    assert box.files.read("kept.txt") == "yes"


def test_files_are_written_read_listed_renamed_and_removed(box):
    made = box.files.write("folder/a.txt", "héllo")
    assert made.path == "/app/folder/a.txt"
    assert box.files.read("folder/a.txt") == "héllo"
    assert bytes(box.files.read("/home/user/folder/a.txt", format="bytes")) == "héllo".encode()
    assert b"".join(box.files.read("folder/a.txt", format="stream")) == "héllo".encode()
    assert box.run_code("open('folder/a.txt', encoding='utf-8').read()").text == "héllo"
    box.files.write_files(
        [{"path": "folder/b", "data": b"\0\1"}, {"path": "folder/c", "data": "c"}]
    )
    assert [one.name for one in box.files.list("folder")] == ["a.txt", "b", "c"]
    assert box.files.rename("folder/c", "folder/d").path == "/app/folder/d"
    assert box.files.exists("folder/d")
    assert not box.files.exists("folder/c")
    box.files.remove("folder/d")
    assert not box.files.exists("folder/d")
    with pytest.raises(NotFoundException):
        box.files.read("none")


def test_folders(box):
    assert box.files.make_dir("one/two")
    assert not box.files.make_dir("one/two")
    about = box.files.get_info("one/two")
    assert (about.type, about.permissions[0]) == (FileType.DIR, "d")
    assert [one.path for one in box.files.list("one", depth=2)] == ["/app/one/two"]
    box.files.remove("one")
    assert not box.files.exists("one")


def test_a_path_outside_is_refused(box):
    with pytest.raises(SandboxException, match="not in a folder of the sandbox"):
        box.files.read("/etc/passwd")
    with pytest.raises(SandboxException):
        box.files.write("../../etc/x", "x")


def test_a_watcher_tells_changes(box):
    box.files.make_dir("seen")
    watcher = box.files.watch_dir("seen")
    box.files.write("seen/new.txt", "1")
    told = watcher.get_new_events()
    assert "new.txt" in [one.name for one in told]
    watcher.stop()


def test_signed_urls_read_and_write(box):
    box.files.write("signed.txt", "shared")
    with urllib.request.urlopen(box.download_url("signed.txt", use_signature_expiration=60)) as got:
        assert got.read() == b"shared"
    form = (
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\nnew\r\n--b--\r\n'
    )
    headers = {"content-type": "multipart/form-data; boundary=b"}
    asked = urllib.request.Request(box.upload_url("signed.txt"), form, headers)
    with urllib.request.urlopen(asked) as done:
        assert done.status == 200
    assert box.files.read("signed.txt") == "new"
    wrong = box.download_url("signed.txt").replace("signed.txt", "folder")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(wrong)


def test_a_command_runs(box):
    heard = []
    done = box.commands.run("echo out; echo err >&2; pwd", on_stdout=heard.append)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "out\n/app\n", "err\n")
    assert "".join(heard) == done.stdout
    done = box.commands.run("echo $A; pwd", envs={"A": "b"}, cwd="/tmp")
    assert done.stdout == "b\n/tmp\n"
    with pytest.raises(CommandExitException) as failed:
        box.commands.run("echo no >&2; exit 3")
    assert (failed.value.exit_code, failed.value.stderr) == (3, "no\n")


def test_background_commands_are_listed_connected_to_and_killed(box):
    handle = box.commands.run("echo begun; sleep 60", background=True)
    (listed,) = [one for one in box.commands.list() if one.pid == handle.pid]
    assert listed.cmd == "/bin/bash"
    assert "sleep 60" in listed.args[-1]
    again = box.commands.connect(handle.pid)
    assert box.commands.kill(handle.pid)
    with pytest.raises(CommandExitException) as ended:
        again.wait()
    assert ended.value.stdout == "begun\n"
    assert not box.commands.kill(handle.pid)
    assert handle.pid not in [one.pid for one in box.commands.list()]


def test_stdin_is_sent_and_closed(box):
    handle = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "line\n")
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "line\n"


def test_stdin_is_streamed_as_it_comes(box):
    command = "read a; echo $a > got; read b; echo $a $b"
    handle = box.commands.run(command, background=True, stdin=True)

    def pieces():
        yield "first\n"
        until = time.monotonic() + 20
        while not box.files.exists("got"):
            assert time.monotonic() < until
        yield "second\n"

    box.commands.stream_input(handle.pid, pieces())
    assert handle.wait().stdout == "first second\n"


def test_a_command_ends_at_its_timeout(box):
    with pytest.raises(TimeoutException):
        box.commands.run("sleep 61", timeout=1)
    until = time.monotonic() + 10
    while any("sleep 61" in one.args[-1] for one in box.commands.list()):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_pause_and_resume_keep_memory(service):
    with Sandbox.create() as made:
        made.run_code("kept = [1, 2]")
        made.pause()
        assert not made.is_running()
        assert made.get_info().state.value == "paused"
        with pytest.raises(SandboxException):
            made.run_code("kept")
        again = made.connect()
        assert again.is_running()
        assert again.run_code("kept").text == "[1, 2]"


def test_forks_go_their_own_ways(service):
    with Sandbox.create() as made:
        made.run_code("n = 1")
        made.files.write("f", "1")
        first, second = made.fork(count=2, timeout=60)
        assert first.run_code("n += 1\nn").text == "2"
        assert second.run_code("n").text == "1"
        second.files.write("f", "2")
        assert made.files.read("f") == "1"
        first.kill()
        second.kill()


def test_listing_by_metadata_timeouts_and_kill(service):
    made = Sandbox.create(metadata={"job": "seven"}, envs={"TEAM": "blue"}, timeout=120)
    assert made.run_code("import os; os.environ['TEAM']").text == "blue"
    (listed,) = Sandbox.list(query=SandboxQuery(metadata={"job": "seven"})).next_items()
    assert listed.sandbox_id == made.sandbox_id
    before = made.get_info().end_at
    made.set_timeout(1_000)
    assert (made.get_info().end_at - before).total_seconds() > 500
    assert made.get_metrics()[0].mem_total > 0
    assert made.is_running()
    assert made.kill()
    assert not made.kill()
    assert not made.is_running()
    with pytest.raises(SandboxException):
        made.run_code("1")
    with pytest.raises((SandboxNotRunningException, NotFoundException)):
        made.commands.run("true")


def test_a_timeout_ends_a_sandbox(service):
    made = Sandbox.create(timeout=1)
    until = time.monotonic() + 15
    while made.is_running():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_another_tenant_finds_nothing(service, box):
    key = new_key(service, "--tenant", "other")
    with pytest.raises(NotFoundException):
        Sandbox.connect(box.sandbox_id, api_key=key)
    assert not Sandbox.kill(box.sandbox_id, api_key=key)
    assert Sandbox.list(api_key=key).next_items() == []
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 40)


def test_the_plain_sdk_makes_sandboxes_too(service):
    with PlainSandbox.create("base") as made:
        assert made.commands.run("python3 -c 'print(1)'").stdout == "1\n"


async def test_the_async_sdk(service):
    async with await AsyncSandbox.create() as made:
        assert (await made.run_code("6 * 7")).text == "42"
        await made.files.write("a", "b")
        assert await made.files.read("a") == "b"
        assert (await made.commands.run("cat a")).stdout == "b"
        told = asyncio.Queue()
        await made.files.make_dir("seen")
        watcher = await made.files.watch_dir("seen", on_event=told.put_nowait)
        await made.files.write("seen/new.txt", "1")
        event = await asyncio.wait_for(told.get(), 10)
        assert event.name == "new.txt"
        await watcher.stop()


async def test_the_plain_async_sdk(service):
    async with await PlainAsyncSandbox.create() as made:
        handle = await made.commands.run("sleep 60", background=True)
        assert await handle.kill()


def test_a_snapshot_starts_sandboxes_with_its_variables_and_files(service):
    with Sandbox.create(timeout=100) as made:
        made.run_code("kept = {'a': 1}")
        made.files.write("note.txt", "hello")
        found = made.create_snapshot(name="first")
        assert [one.snapshot_id for one in made.list_snapshots().next_items()] == [
            found.snapshot_id
        ]
        made.run_code("kept['a'] = 2")
        for template in (found.snapshot_id, "first"):
            with Sandbox.create(template, timeout=100) as again:
                assert again.run_code("kept").text == "{'a': 1}"
                assert again.files.read("note.txt") == "hello"
        made.run_code("import threading; lock = threading.Lock()")
        with pytest.raises(SandboxException, match="lock"):
            made.create_snapshot()
    assert Sandbox.delete_snapshot(found.snapshot_id)
    assert not Sandbox.delete_snapshot(found.snapshot_id)
    with pytest.raises(SandboxException, match="no such snapshot"):
        Sandbox.create(found.snapshot_id)


def test_a_terminal_is_typed_into_resized_and_killed(service, box):
    told = []
    terminal = box.pty.create(size=PtySize(rows=20, cols=80), timeout=100)
    box.pty.send_stdin(terminal.pid, b"stty size; tty; exit 3\n")
    with pytest.raises(CommandExitException) as ended:
        terminal.wait(on_pty=told.append)
    text = b"".join(told).decode()
    assert (ended.value.exit_code, "20 80" in text, "/dev/pts/" in text) == (3, True, True)
    terminal = box.pty.create(size=PtySize(rows=20, cols=80), timeout=100)
    box.pty.resize(terminal.pid, PtySize(rows=33, cols=99))
    box.pty.send_stdin(terminal.pid, b"stty size\n")
    for _, _, piece in terminal:
        if piece and b"33 99" in piece:
            break
    assert box.pty.kill(terminal.pid)


def test_what_atoll_does_not_have_is_refused(service, box):
    with pytest.raises(SandboxException, match="network"):
        Sandbox.create(network={"allow_out": ["10.0.0.1"]})


def test_the_page_s_example(service, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_example("e2b")
    assert capsys.readouterr().out.split() == ["42", "[1,", "2,", "3]", "hello", "14"]

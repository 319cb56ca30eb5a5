"""`atoll mcp`, asked by the client of the official SDK: in this process, over stdio, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from atoll.config import SandboxConfig
from atoll.errors import ConfigError
from atoll.integrations import mcp_http, mcp_sessions
from atoll.integrations.mcp_server import make_server
from atoll.integrations.mcp_sessions import Owner

TOKEN = "a-token-for-this-test"
ONE, TWO = (Owner(name=name, connected=True) for name in ("one", "two"))


def opened(**options):
    return Client(make_server(SandboxConfig(preload="bare", context="one\ntwo\nthree"), **options))


async def call(client, tool, /, **arguments):
    result = await client.call_tool(tool, arguments)
    texts = [one.text for one in result.content if one.type == "text"]
    assert not result.is_error, texts
    return "\n".join(texts)


async def refused(client, tool, /, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return result.content[0].text


async def test_a_session_keeps_variables_forks_and_rolls_back():
    async with opened() as client:
        assert await call(client, "run_python", code="x = 41; print('hi'); x + 1") == "hi\n42"
        mark = await call(client, "checkpoint")
        await call(client, "fork", new="other")
        await call(client, "run_python", code="x = 0", session="other")
        await call(client, "run_python", code="x = 1")
        await call(client, "rollback", mark=mark)
        assert await call(client, "run_python", code="x") == "41"
        assert await call(client, "run_python", code="x", session="other") == "0"
        assert await call(client, "list_sessions") == "main\nother"
        assert "already" in await refused(client, "fork", new="other")
        await call(client, "close_session", session="other")
        assert await call(client, "list_sessions") == "main"


async def test_a_fork_that_waits_for_a_cell_keeps_no_other_session_waiting():
    sessions = mcp_sessions.Sessions(SandboxConfig(preload="bare"))
    try:
        busy = await sessions.get(ONE, "main")
        release = asyncio.Event()
        running = asyncio.create_task(busy.run(release.wait))
        await asyncio.sleep(0)
        forking = asyncio.create_task(sessions.fork(ONE, "main", "twin"))
        other = await asyncio.wait_for(sessions.get(TWO, "main"), 60)
        assert not forking.done()
        with pytest.raises(ConfigError, match="already"):
            await sessions.fork(ONE, "main", "twin")
        with pytest.raises(ConfigError, match="being made"):
            await sessions.get(ONE, "twin")
        assert (await other.box.execute("1")).success
        release.set()
        await running
        assert (await forking).name == "twin"
    finally:
        await sessions.close_all()


async def test_tools_say_what_they_change():
    async def ask(*_args):
        return ""

    async with opened(ask=ask) as client:
        tools = {one.name: one.annotations for one in (await client.list_tools()).tools}
    reads = {name for name, one in tools.items() if one.read_only_hint}
    assert reads == {
        "list_files",
        "read_file",
        "context_grep",
        "context_peek",
        "list_sessions",
        "list_processes",
        "read_process",
        "wait_process",
    }
    assert tools["ask"].open_world_hint is True
    assert not tools["fork"].destructive_hint


async def test_a_fault_of_the_code_is_an_error_with_traceback_and_isolation():
    async with opened() as client:
        result = await client.call_tool("run_python", {"code": "1/0"})
        assert result.is_error
        assert result.content[0].text.endswith("\nZeroDivisionError: division by zero")
        assert result.content[0].text.count("division by zero") == 1
        assert result.structured_content["isolation"] == "jailed"
        assert "letters" in await refused(client, "run_python", code="1", session="../x")
        shell = await client.call_tool("run_shell", {"command": "echo out; echo err >&2; exit 3"})
        assert shell.is_error
        assert shell.content[0].text == "out\nerr\nexit code 3"


async def test_processes_run_on_between_calls_and_are_written_to_read_and_ended():
    async with opened() as client:
        line = "echo ready; while read line; do echo got $line; done; echo bye; exit 3"
        started = await client.call_tool("start_process", {"command": line, "wait_seconds": 30})
        assert started.structured_content["running"]
        assert started.content[0].text == "ready\n"
        number = started.structured_content["process"]
        busy = asyncio.create_task(call(client, "run_python", code="import time; time.sleep(2)"))
        for _ in range(2):  # beside a cell, too
            said = await call(
                client, "write_process", process=number, text="a b\n", wait_seconds=30
            )
            assert said == f"got a b\n\n[process {number}: running]"
        assert not busy.done()
        assert f"{number}: {line} (running)" in await call(client, "list_processes")
        nothing = await call(client, "read_process", process=number, wait_seconds=0)
        assert nothing == f"[process {number}: running]"
        await call(client, "write_process", process=number, text="", end=True, wait_seconds=0)
        ended = await client.call_tool("wait_process", {"process": number})
        assert ended.structured_content["exit_code"] == 3
        terminal = await client.call_tool(
            "start_process", {"command": "cat", "pty": True, "wait_seconds": 0}
        )
        ident = terminal.structured_content["process"]
        await call(client, "signal_process", process=ident, signal="SIGKILL")
        gone = await client.call_tool("wait_process", {"process": ident})
        assert gone.structured_content["exit_code"] == 137
        assert "start_process" in await refused(client, "read_process", process="99")
        flood = await client.call_tool(
            "start_process", {"command": "yes | head -c 30000000", "wait_seconds": 0}
        )
        ident = flood.structured_content["process"]
        last = await client.call_tool("wait_process", {"process": ident})
        assert "bytes before that are lost" in last.content[-1].text
        assert len(last.content[0].text) < 10_000
        await busy


async def test_files_and_images_cross_both_ways():
    async with opened() as client:
        data = base64.b64encode(b"\x00\xff").decode()
        await call(client, "write_file", path="a/b.bin", content=data, base64_encoded=True)
        await call(client, "write_file", path="note.txt", content="héllo\n")
        assert await call(client, "list_files") == "a/\nnote.txt  7"
        assert await call(client, "read_file", path="note.txt") == "héllo\n"
        [text] = (await client.read_resource("atoll://main/files/note.txt")).contents
        assert text.text == "héllo\n"
        [blob] = (await client.read_resource("atoll://main/files/a/b.bin")).contents
        assert base64.b64decode(blob.blob) == b"\x00\xff"
        with pytest.raises(MCPError, match="file_not_found"):
            await client.read_resource("atoll://main/files/missing.txt")
        with pytest.raises(MCPError):
            await client.read_resource("atoll://main/files/../../etc/passwd")
        code = (
            "class P:\n def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\n"
            "open('p.png','wb').write(P()._repr_png_()); P()"
        )
        image = (await client.call_tool("run_python", {"code": code})).content[-1]
        assert (image.type, image.mime_type) == ("image", "image/png")
        assert base64.b64decode(image.data).startswith(b"\x89PNG")
        read = (await client.call_tool("read_file", {"path": "p.png"})).content[0]
        assert read.type == "image"


async def test_a_long_output_is_shortened_and_can_be_searched():
    async with opened() as client:
        result = await client.call_tool("run_python", {"code": "for i in range(5000): print(i)"})
        assert len(result.content[0].text) < 9000
        assert "context_open(output='1')" in result.content[0].text
        [whole] = (await client.read_resource(result.content[1].uri)).contents
        assert whole.text.splitlines()[2500] == "2500"
        assert "5,000 lines" in await call(client, "context_open", output="1")
        assert await call(client, "context_grep", pattern="^4321$") == "line 4322 at 20495: 4321"
        assert await call(client, "context_peek", start=20495, length=4) == "4321"
        assert "no output" in await refused(client, "context_open", output="9")
        assert "exactly one" in await refused(client, "context_open")
        assert (
            await call(client, "context_grep", pattern="two", name="context") == "line 2 at 4: two"
        )
        assert "no context" in await refused(client, "context_grep", pattern="x", name="nope")


async def test_progress_tells_what_is_printed_and_a_cancelled_call_keeps_the_variables():
    heard = asyncio.Event()

    async def hear(progress, total, message):
        assert progress == 3
        assert message == "go"
        heard.set()

    async with opened() as client:
        await call(client, "run_python", code="x = 7")
        code = "print('go', flush=True)\nimport time\nwhile True: time.sleep(0.01)"
        running = asyncio.ensure_future(
            client.call_tool("run_python", {"code": code}, progress_callback=hear)
        )
        await heard.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert await call(client, "run_python", code="x") == "7"
        late = await client.call_tool("run_python", {"code": code, "timeout_seconds": 0.2})
        assert late.structured_content["outcome"] == "timeout"
        last = late.content[0].text.splitlines()[-2:]
        assert last == ["KeyboardInterrupt", "TimeoutError: the execution took longer than 200 ms"]


async def test_without_a_name_the_text_opened_last_is_searched_then_the_server_s_own():
    async with opened() as client:
        assert await call(client, "context_grep", pattern="two") == "line 2 at 4: two"
        assert await call(client, "context_peek", start=4, length=3) == "two"
        for name in ("a", "b", "a"):
            await call(client, "context_open", name=name, text=f"text {name}")
        assert await call(client, "context_grep", pattern="text") == "line 1 at 0: text a"
        text = "there is no context 'x': use one of context, b, a, or open one with context_open"
        assert (await refused(client, "context_grep", pattern="t", name="x")).endswith(text)


async def test_without_any_text_a_search_says_how_to_open_one():
    async with Client(make_server(SandboxConfig(preload="bare"))) as client:
        text = "no text is open: open one with context_open"
        assert (await refused(client, "context_grep", pattern="t")).endswith(text)


async def test_an_unknown_mark_is_refused_with_those_that_are_kept():
    async with opened() as client:
        mark = await call(client, "checkpoint")
        text = f"no checkpoint 'x': use one of {mark}"
        assert (await refused(client, "rollback", mark="x")).endswith(text)


async def test_the_number_of_sessions_and_contexts_is_limited():
    async with opened(most_sessions=1) as client:
        await call(client, "run_python", code="1")
        assert "1 sessions already" in await refused(client, "run_python", code="1", session="b")
        for number in range(mcp_sessions.MAX_CONTEXTS + 1):
            await call(client, "context_open", name=f"c{number}", text="abc")
        assert "no context" in await refused(client, "context_peek", start=0, name="c0")


async def test_an_idle_session_ends_and_its_name_opens_a_new_one():
    sessions = mcp_sessions.Sessions(SandboxConfig(preload="bare"))
    first = await sessions.get(ONE, "a")
    assert await sessions.get(ONE, "a") is first
    first.used -= mcp_sessions.IDLE_SECONDS + 1
    assert await sessions.get(ONE, "a") is not first
    assert sessions.of(TWO) == []
    await sessions.close_all()


async def test_ask_is_there_with_a_model_and_reports_its_steps():
    async def answer(question, text, tell):
        tell("a step")
        await asyncio.sleep(0)
        return f"{question} {len(text)}"

    async with opened() as client:
        assert "ask" not in [one.name for one in (await client.list_tools()).tools]
    async with opened(ask=answer) as client:
        assert await call(client, "ask", question="how long?", name="context") == "how long? 13"


async def test_over_stdio_the_command_serves_and_ends_with_its_client():
    given = ["-m", "atoll.cli.main", "mcp", "--backend", "native", "--tier", "bare"]
    async with Client(StdioServerParameters(command=sys.executable, args=given)) as client:
        assert client.server_info.name == "atoll"
        assert await call(client, "run_python", code="6 * 7") == "42"


@contextlib.asynccontextmanager
async def http(token):
    ready = asyncio.get_running_loop().create_future()
    server = make_server(SandboxConfig(preload="bare"))
    serving = asyncio.ensure_future(
        mcp_http.serve_http(server, tokens=(token,), on_ready=ready.set_result)
    )
    try:
        yield await ready
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def test_over_http_host_origin_and_token_are_checked_and_sessions_are_apart():
    from mcp.client.streamable_http import streamable_http_client

    async with http(TOKEN) as url:
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as web:
            for wrong, status in (
                ({"Authorization": "Bearer x"}, 401),
                ({"Authorization": ""}, 401),
                ({"Host": "evil.example"}, 421),
                ({"Origin": "http://evil.example"}, 403),
            ):
                given = await web.post(url, json={}, headers=wrong)
                assert given.status_code == status, wrong
            first, second = (
                Client(streamable_http_client(url, http_client=web), mode="legacy") for _ in "12"
            )
            async with first, second:
                await call(first, "run_python", code="x = 1")
                assert "NameError" in await refused(second, "run_python", code="x")
                assert await call(second, "list_sessions") == "main"
                await check_progress_resources_and_cancellation(first)


async def check_progress_resources_and_cancellation(client):
    heard = asyncio.Event()

    async def hear(_progress, _total, _message):
        heard.set()

    code = "open('note.txt', 'w').write('abc')\nprint('go', flush=True)\nwhile True: pass"
    running = asyncio.ensure_future(
        client.call_tool("run_python", {"code": code}, progress_callback=hear)
    )
    await heard.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert await call(client, "run_python", code="x") == "1"
    [text] = (await client.read_resource("atoll://main/files/note.txt")).contents
    assert text.text == "abc"


def test_without_a_token_only_this_machine_is_served(monkeypatch):
    mcp_http.check_host("127.0.0.1", guarded=False)
    mcp_http.check_host("0.0.0.0", guarded=True)
    for host in ("0.0.0.0", "example.org", "::"):
        with pytest.raises(ConfigError, match="this machine alone"):
            mcp_http.check_host(host, guarded=False)
    monkeypatch.setenv("ATOLL_MCP_TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16"):
        mcp_http.tokens_from_environment()

"""`atoll mcp` in protocol 2026-07-28: handles, schemas, tasks, approvals, changes, OAuth.

What both revisions have is in test_mcp_server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time

import httpx2
import pytest
from mcp import Client
from mcp.types import ElicitResult
from mcp_types import ResourceTemplateReference

from atoll.config import SandboxConfig
from atoll.errors import ConfigError
from atoll.integrations import mcp_http, mcp_resources, mcp_tasks
from atoll.integrations.mcp_server import make_server

TOKENS = ("a-token-for-this-test", "another-token-of-test")
REVISION = "2026-07-28"
TASKS = {"extensions": {mcp_tasks.IDENTIFIER: {}}}
_NUMBERS = itertools.count(1)


def served(**options):
    return make_server(SandboxConfig(preload="bare"), **options)


@contextlib.asynccontextmanager
async def http(server, **options):
    ready = asyncio.get_running_loop().create_future()
    options = {"tokens": TOKENS, **options}
    serving = asyncio.ensure_future(
        mcp_http.serve_http(server, on_ready=ready.set_result, **options)
    )
    try:
        yield await ready
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


class Web:
    """Sends single requests, as a client without a handshake."""

    def __init__(self, client, url, token=TOKENS[0]):
        self._client, self._url, self._token = client, url, token

    async def send(self, method, params, capabilities=None):
        meta = {
            "io.modelcontextprotocol/protocolVersion": REVISION,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": capabilities or {},
        }
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": REVISION,
            "Mcp-Method": method,
        }
        name = params.get("name") or params.get("uri") or params.get("taskId")
        if name:
            headers["Mcp-Name"] = name
        body = {
            "jsonrpc": "2.0",
            "id": next(_NUMBERS),
            "method": method,
            "params": {**params, "_meta": meta},
        }
        answered = await self._client.post(self._url, json=body, headers=headers)
        if "text/event-stream" in answered.headers["content-type"]:
            lines = [one for one in answered.text.splitlines() if one.startswith("data:")]
            return json.loads(lines[-1].removeprefix("data:"))
        return answered.json()

    async def call(self, tool, capabilities=None, **arguments):
        params = {"name": tool, "arguments": arguments}
        answer = await self.send("tools/call", params, capabilities)
        return answer.get("result", answer)


async def test_without_connections_the_server_mints_handles_that_belong_to_a_token():
    async with http(served()) as url, httpx2.AsyncClient(timeout=60) as client:
        one, two = (Web(client, url, token) for token in TOKENS)
        first = await one.call("run_python", code="x = 1")
        handle = first["structuredContent"]["session"]
        assert f"[session {handle}: pass it" in first["content"][-1]["text"]
        again = await one.call("run_python", code="x", session=handle)
        assert [part["text"] for part in again["content"]] == ["1"]
        other = await one.call("run_python", code="x")
        assert "NameError" in other["content"][0]["text"]
        assert other["structuredContent"]["session"] != handle
        for name in (handle, "main"):
            stolen = await two.call("run_python", code="x", session=name)
            assert stolen["isError"]
            assert "open one with open_session" in stolen["content"][0]["text"]
        opened = (await one.call("open_session"))["structuredContent"]["session"]
        forked = (await one.call("fork", session=handle))["structuredContent"]["session"]
        assert (await one.call("run_python", code="x", session=forked))["content"][0]["text"] == "1"
        assert (
            "leave out `new`"
            in (await one.call("fork", session=handle, new="mine"))["content"][0]["text"]
        )
        assert "name the session" in (await one.call("close_session"))["content"][0]["text"]
        listed = (await one.call("list_sessions"))["structuredContent"]["sessions"]
        assert {handle, opened, forked} <= set(listed)
        assert (await two.call("list_sessions"))["structuredContent"]["sessions"] == []


async def test_tools_have_output_schemas_and_descriptions_without_indentation():
    async with Client(served()) as client:
        tools = {one.name: one for one in (await client.list_tools()).tools}
        assert all(one.output_schema["type"] == "object" for one in tools.values())
        cell = tools["run_python"].output_schema
        assert set(cell["required"]) == set(cell["properties"])
        assert "session" in cell["properties"]
        assert not any("\n " in one.description for one in tools.values())
        matches = await client.call_tool("context_open", {"text": "a\nb"})
        assert matches.structured_content == {"name": "text", "characters": 3, "lines": 2}
        found = await client.call_tool("context_grep", {"pattern": "b"})
        assert found.structured_content["matches"] == [{"line": 2, "start": 2, "text": "b"}]
        await client.call_tool("write_file", {"path": "a.txt", "content": "abc"})
        files = (await client.call_tool("list_files", {})).structured_content
        assert files["files"] == [{"path": "a.txt", "size": 3, "folder": False}]


async def test_files_are_listed_completed_and_their_changes_are_announced():
    async with Client(served()) as client:
        await client.call_tool("run_python", {"code": "open('a b.csv', 'w').write('1')"})
        [listed] = (await client.list_resources()).resources
        assert (listed.name, listed.mime_type, listed.size) == ("a b.csv", "text/csv", 1)
        assert listed.uri == "atoll://main/files/a%20b.csv"
        async with client.listen(
            resources_list_changed=True, resource_subscriptions=[listed.uri]
        ) as events:
            await client.call_tool("run_shell", {"command": "echo more >> 'a b.csv'"})
            assert (await anext(aiter(events))).uri == listed.uri
            await client.call_tool("run_shell", {"command": "echo > c.txt"})
            assert type(await anext(aiter(events))).__name__ == "ResourcesListChanged"
        assert len((await client.list_resources()).resources) == 2
        files = ResourceTemplateReference(uri=mcp_resources.FILES)
        asked = await client.complete(files, {"name": "session", "value": "m"})
        assert asked.completion.values == ["main"]
        asked = await client.complete(
            files, {"name": "path", "value": "a"}, context_arguments={"session": "main"}
        )
        assert asked.completion.values == ["a b.csv"]


@pytest.mark.filterwarnings("ignore:resources/")
async def test_an_older_client_gets_notifications_on_its_own_connection():
    heard = asyncio.Queue()

    async def hear(message):
        await heard.put(getattr(message, "method", None))

    async with Client(served(), mode="legacy", message_handler=hear) as client:
        known = client.server_capabilities.resources
        assert (known.subscribe, known.list_changed) == (True, True)
        await client.subscribe_resource("atoll://main/files/a.txt")
        await client.call_tool("write_file", {"path": "a.txt", "content": "1"})
        assert await asyncio.wait_for(heard.get(), 60) == "notifications/resources/list_changed"
        assert await asyncio.wait_for(heard.get(), 60) == "notifications/resources/updated"
        await client.unsubscribe_resource("atoll://main/files/a.txt")
        await client.call_tool("write_file", {"path": "a.txt", "content": "22"})
        await client.call_tool("write_file", {"path": "b.txt", "content": "1"})
        assert await asyncio.wait_for(heard.get(), 60) == "notifications/resources/list_changed"
        assert heard.empty()


async def finished(web, task, token=None):
    while True:
        state = (await web.send("tasks/get", {"taskId": task}, TASKS))["result"]
        if state["status"] != "working":
            return state
        await asyncio.sleep(0.05)


async def test_a_call_that_takes_long_becomes_a_task_for_clients_that_know_tasks():
    server = served(task_after_seconds=0.2)
    async with http(server) as url, httpx2.AsyncClient(timeout=60) as client:
        web, other = (Web(client, url, token) for token in TOKENS)
        handle = (await web.call("open_session"))["structuredContent"]["session"]
        slow = "import time\nprint('begun', flush=True)\ntime.sleep(0.8)\nx = 5\nx"
        quick = await web.call("run_python", TASKS, code="1", session=handle)
        assert quick["content"][0]["text"] == "1"
        plain = await web.call("run_python", code=slow, session=handle)
        assert plain["resultType"] == "complete"
        made = await web.call("run_python", TASKS, code=slow, session=handle)
        assert (made["resultType"], made["status"]) == ("task", "working")
        assert "result" not in made
        foreign = await other.send("tasks/get", {"taskId": made["taskId"]}, TASKS)
        assert foreign["error"]["code"] == -32602
        undeclared = await web.send("tasks/get", {"taskId": made["taskId"]})
        assert undeclared["error"]["code"] == -32021
        ended = await finished(web, made["taskId"])
        assert ended["status"] == "completed"
        assert ended["statusMessage"] == "begun"
        assert ended["result"]["content"][0]["text"] == "begun\n5"
        failing = "import time\ntime.sleep(0.5)\n1/0"
        made = await web.call("run_python", TASKS, code=failing, session=handle)
        ended = await finished(web, made["taskId"])
        assert (ended["status"], ended["result"]["isError"]) == ("completed", True)


async def test_a_cancelled_task_interrupts_the_code_and_keeps_the_variables():
    server = served(task_after_seconds=0.1)
    async with http(server) as url, httpx2.AsyncClient(timeout=60) as client:
        web = Web(client, url)
        first = await web.call("run_python", code="x = 7")
        handle = first["structuredContent"]["session"]
        made = await web.call("run_python", TASKS, code="while True: pass", session=handle)
        for _ in range(2):
            done = await web.send("tasks/cancel", {"taskId": made["taskId"]}, TASKS)
            assert done["result"]["resultType"] == "complete"
        assert (await finished(web, made["taskId"]))["status"] == "cancelled"
        assert (await web.call("run_python", code="x", session=handle))["content"][0]["text"] == "7"


async def test_above_the_limit_of_tasks_a_call_is_answered_whole():
    tasks = mcp_tasks.Tasks(["run_python"], most=0)
    assert not tasks._has_room()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_tool_that_needs_approval_asks_the_user_first(mode):
    asked, approve = [], ["accept", {"approve": True}]

    async def answer(_context, params):
        asked.append(params.message)
        return ElicitResult(action=approve[0], content=approve[1])

    server = served(approve=["run_shell"])
    async with Client(server, mode=mode, elicitation_callback=answer) as client:
        done = await client.call_tool("run_shell", {"command": "echo hi"})
        assert done.content[0].text == "hi"
        assert asked == ["run_shell is about to run:\ncommand: echo hi"]
        for approve[:] in (["accept", {"approve": False}], ["decline", None]):
            done = await client.call_tool("run_shell", {"command": "echo hi > f"})
            assert (done.is_error, "did not approve" in done.content[0].text) == (True, True)
        await client.call_tool("run_python", {"code": "1"})
        assert len(asked) == 3
        files = (await client.call_tool("list_files", {})).structured_content["files"]
        assert files == []
    async with Client(served(approve=["run_shell"]), mode=mode) as client:
        done = await client.call_tool("run_shell", {"command": "echo hi"})
        assert (done.is_error, "cannot ask" in done.content[0].text) == (True, True)


async def test_an_approval_of_one_call_does_not_approve_another():
    server = served(approve=["run_shell"])
    asks = {"elicitation": {}}
    async with http(server) as url, httpx2.AsyncClient(timeout=60) as client:
        web = Web(client, url)
        shown = await web.call("run_shell", asks, command="echo hi")
        assert shown["resultType"] == "input_required"
        answers = {"approve": {"action": "accept", "content": {"approve": True}}}
        for state in (shown["requestState"], "made-up", None):
            params = {
                "name": "run_shell",
                "arguments": {"command": "echo other > f"},
                "inputResponses": answers,
            } | ({"requestState": state} if state else {})
            answer = await web.send("tools/call", params, asks)
            result = answer.get("result", {})
            assert "error" in answer or result["resultType"] == "input_required", answer


def test_a_tool_to_approve_has_to_exist():
    with pytest.raises(ConfigError, match="no tool 'x' to approve"):
        served(approve=["x"])


def signed(key, **claims):
    import jwt

    return jwt.encode(
        {"exp": time.time() + 60, "sub": "ann", **claims},
        key,
        algorithm="EdDSA",
        headers={"kid": "one"},
    )


async def test_tokens_of_an_authorization_server_are_accepted_for_this_resource(tmp_path):
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    public = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key()))
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{**public, "kid": "one"}]}))
    issuer, resource = "https://auth.example", "https://tools.example/mcp"
    oauth = mcp_http.OAuth(issuer=issuer, keys=str(keys))
    async with (
        http(served(), oauth=oauth, url=resource) as url,
        httpx2.AsyncClient(timeout=60) as client,
    ):
        refused = await client.post(url, json={})
        assert refused.status_code == 401
        where = "https://tools.example/.well-known/oauth-protected-resource/mcp"
        assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{where}"'
        described = await client.get(
            url.removesuffix("/mcp") + "/.well-known/oauth-protected-resource/mcp"
        )
        assert described.json()["authorization_servers"] == [issuer]
        assert described.json()["resource"] == resource
        good = {"iss": issuer, "aud": resource}
        web = Web(client, url, signed(key, **good))
        handle = (await web.call("open_session"))["structuredContent"]["session"]
        bob = Web(client, url, signed(key, **good, sub="bob"))
        assert (await bob.call("run_python", code="1", session=handle))["isError"]
        static = Web(client, url, TOKENS[1])
        assert (await static.call("list_sessions"))["structuredContent"]["sessions"] == []
        for wrong in (
            signed(other, **good),
            signed(key, iss=issuer, aud="https://other.example"),
            signed(key, iss="https://evil.example", aud=resource),
            signed(key, **good, exp=time.time() - 60),
            jwt.encode({**good, "sub": "a", "exp": 9e9}, "s" * 32, "HS256", headers={"kid": "one"}),
        ):
            headers = {"Authorization": f"Bearer {wrong}"}
            assert (await client.post(url, json={}, headers=headers)).status_code == 401

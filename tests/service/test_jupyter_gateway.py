"""The Jupyter gateway, asked over plain HTTP and a small websocket client.

Open WebUI's class and jupyter_server's gateway client judge it in tests/plugs/judge_gateway.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from clients import Api
from own_service import OwnService
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from atoll.service.access.keys import Quota
from atoll.service.dialects.jupyter import kernel as kernels
from atoll.service.dialects.jupyter import messages
from atoll.service.dialects.jupyter.messages import V1

SECONDS = 60
KERNELS = "/jupyter/api/kernels"
TERMINALS = "/jupyter/api/terminals"


class Client:
    """A kernel's client: sends requests, and collects what comes back for each."""

    def __init__(self, service: OwnService, key: str, ident: str, *, v1: bool = False) -> None:
        url = service.url.replace("http", "ws", 1)
        self.ws: ClientConnection = connect(
            f"{url}{KERNELS}/{ident}/channels?token={key}",
            subprotocols=[V1] if v1 else None,
            proxy=None,
        ).__enter__()
        self.protocol = self.ws.subprotocol

    def send(self, kind: str, channel: str = "shell", **content: Any) -> str:
        header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": "me"}
        message = messages.KernelMessage(channel, {**header, "username": ""}, content)
        self.ws.send(messages.write(message, self.protocol))
        return header["msg_id"]

    def next(self) -> messages.KernelMessage:
        return messages.read(self.ws.recv(SECONDS), self.protocol)

    def collect(self, ident: str) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        """The answer to a request, and what was published for it; waits for both."""
        reply, shown, idle = None, [], False
        while reply is None or not idle:
            one = self.next()
            if one.parent_header.get("msg_id") != ident:
                continue
            if one.channel == "iopub":
                idle = one.content.get("execution_state") == "idle"
                shown.append((one.kind, one.content))
            else:
                reply = one.content
        return reply, shown

    def ask(self, kind: str, **content: Any) -> dict[str, Any]:
        return self.collect(self.send(kind, **content))[0]

    def run(self, code: str, **content: Any) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        return self.collect(self.send("execute_request", code=code, **content))

    def text(self, code: str) -> str:
        reply, shown = self.run(code)
        assert reply["status"] == "ok", reply
        return "".join(
            one["data"]["text/plain"] if kind == "execute_result" else one.get("text", "")
            for kind, one in shown
        )


@pytest.fixture
def key(api: Api) -> str:
    return api.headers["authorization"].removeprefix("Bearer ")


@pytest.fixture
def kernel(api: Api) -> dict[str, Any]:
    made = api.post(KERNELS, json={"name": "bare"})
    assert made.status_code == 201, made.text
    assert made.headers["location"] == f"{KERNELS}/{made.json()['id']}"
    return made.json()


@pytest.fixture
def client(service: OwnService, key: str, kernel: dict[str, Any]) -> Iterator[Client]:
    made = Client(service, key, kernel["id"])
    with contextlib.closing(made.ws):
        yield made


def test_a_cell_publishes_streams_displays_and_its_value_between_busy_and_idle(
    client: Client,
) -> None:
    code = (
        "import sys; x = 6; print('out'); print('err', file=sys.stderr)\n"
        "class P:\n def _repr_html_(self): return '<b>1</b>'\n"
        " def _repr_png_(self): return b'\\x89PNG'\nP()"
    )
    reply, shown = client.run(code)
    assert (reply["status"], reply["execution_count"]) == ("ok", 1)
    kinds = [kind for kind, _ in shown]
    assert kinds[:2] == ["status", "execute_input"]
    assert kinds[-1] == "status"
    streams = {one["name"]: one["text"] for kind, one in shown if kind == "stream"}
    assert streams == {"stdout": "out\n", "stderr": "err\n"}
    found = {kind: one["data"] for kind, one in shown if "data" in one}
    assert found["execute_result"]["text/html"] == "<b>1</b>"
    assert found["display_data"] == {"image/png": "iVBORw=="}
    assert client.text("import getpass; getpass.getuser(), x") == "('guest', 6)"


def test_an_error_has_its_traceback_once_and_aborts_the_cells_that_wait(
    client: Client, service: OwnService, kernel: dict[str, Any]
) -> None:
    until = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    first = client.send("execute_request", code=f"{until}print('go', flush=True)\n1 / 0")
    second = client.send("execute_request", code="print('never')")
    known = service.service.gateway._kernels[kernel["id"]]
    while known.state != "busy" or not known._waiting.qsize():
        time.sleep(0.01)
    service.call(lambda: known.hosted.files.upload([("go", b"")]))
    reply, shown = client.collect(first)
    assert (reply["ename"], reply["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert reply["traceback"][0] == "Traceback (most recent call last):"
    assert [kind for kind, _ in shown if kind in ("stream", "error")] == ["stream", "error"]
    reply, shown = client.collect(second)
    assert reply == {"status": "aborted"}
    assert [one["execution_state"] for _, one in shown] == ["busy", "idle"]
    reply, _ = client.run("y = 3", user_expressions={"twice": "y * 2", "bad": "nope"})
    assert reply["user_expressions"]["twice"]["data"] == {"text/plain": "6"}
    assert reply["user_expressions"]["bad"]["status"] == "error"


def test_silent_cells_are_neither_shown_nor_counted(client: Client) -> None:
    reply, shown = client.run("print(1); 1", silent=True)
    assert [kind for kind, _ in shown] == ["status", "status"]
    assert (reply["status"], reply["execution_count"]) == ("ok", 0)


def test_requests_besides_cells_are_answered(client: Client) -> None:
    info = client.ask("kernel_info_request")
    assert (info["language_info"]["name"], info["implementation"]) == ("python", "atoll")
    assert "isolation: jailed" in info["banner"] or "isolation: confined" in info["banner"]
    client.run("some_long_name = [1]")
    assert client.ask("complete_request", code="some_lon", cursor_pos=8)["matches"] == [
        "some_long_name"
    ]
    found = client.ask("inspect_request", code="len(", cursor_pos=3)
    assert "number of items" in found["data"]["text/plain"]
    assert client.ask("is_complete_request", code="if x:\n  y")["status"] == "incomplete"
    past = client.ask("history_request", hist_access_type="tail", n=1)
    assert past["history"] == [[0, 1, "some_long_name = [1]"]]
    assert client.ask("comm_info_request") == {"status": "ok", "comms": {}}
    wrong = client.ask("history_request", hist_access_type="range", start="a")
    assert (wrong["status"], wrong["evalue"]) == ("error", "the service failed: TypeError")
    assert client.run("1", user_expressions=5)[0]["status"] == "ok"


@pytest.mark.parametrize("by", ["control", "rest"])
def test_an_interrupt_stops_the_cell_and_keeps_variables(
    client: Client, api: Api, kernel: dict[str, Any], by: str
) -> None:
    client.run("kept = 1")
    code = "print('go', flush=True)\nimport time\nwhile True: time.sleep(0.01)"
    ident = client.send("execute_request", code=code)
    while client.next().content.get("text") != "go\n":
        pass
    assert api.get(f"{KERNELS}/{kernel['id']}").json()["execution_state"] == "busy"
    if by == "rest":
        assert api.post(f"{KERNELS}/{kernel['id']}/interrupt").status_code == 204
    else:
        client.send("interrupt_request", "control")
    reply, _ = client.collect(ident)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert client.text("kept") == "1"


def test_a_restart_forgets_variables_and_counts_anew(
    client: Client, api: Api, kernel: dict[str, Any]
) -> None:
    client.run("x = 1")
    assert api.post(f"{KERNELS}/{kernel['id']}/restart").status_code == 200
    states = [client.next().content["execution_state"] for _ in range(2)]
    assert states == ["restarting", "idle"]
    reply, _ = client.run("x")
    assert (reply["ename"], reply["execution_count"]) == ("NameError", 1)
    assert client.ask("shutdown_request", restart=True)["restart"] is True
    assert client.run("x = 1")[0]["execution_count"] == 1


def test_a_process_that_dies_is_told_as_a_restart(client: Client) -> None:
    reply, shown = client.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert reply["status"] == "error"
    states = [one["execution_state"] for kind, one in shown if kind == "status"]
    assert states == ["busy", "restarting", "idle"]
    assert client.text("1 + 1") == "2"


def test_both_forms_of_frames_are_spoken_and_heard_by_every_socket(
    service: OwnService, client: Client, key: str, kernel: dict[str, Any]
) -> None:
    second = Client(service, key, kernel["id"], v1=True)
    with contextlib.closing(second.ws):
        assert second.protocol == V1
        ident = second.send("execute_request", code="print('heard')")
        assert second.collect(ident)[0]["status"] == "ok"
        texts = []
        while "heard\n" not in texts:
            texts.append(client.next().content.get("text"))


def test_a_frame_with_buffers_is_read_and_others_close_the_socket(
    service: OwnService, key: str, kernel: dict[str, Any]
) -> None:
    header = {"msg_id": "1", "msg_type": "comm_info_request"}
    text = json.dumps({"header": header, "content": {}, "channel": "shell"}).encode()
    good = struct.pack(">3I", 2, 12, 12 + len(text)) + text + b"buffer"
    wrong = [
        "{", "[]", '{"header": 3}', '{"header": {}}', "[" * 100_000, b"", b"\0\0\0\1",
        struct.pack(">2I", 1, 2**31), struct.pack(">I", 2**31), struct.pack(">3I", 2, 100, 12),
    ]  # fmt: skip
    client = Client(service, key, kernel["id"])
    with contextlib.closing(client.ws):
        client.ws.send(good)
        assert client.collect("1")[0] == {"status": "ok", "comms": {}}
    for frame in wrong:
        client = Client(service, key, kernel["id"])
        client.ws.send(frame)
        with pytest.raises(ConnectionClosed) as closed:
            client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007


def test_frames_of_v1_that_lie_are_refused() -> None:
    fine = messages.write(messages.KernelMessage("shell", {"msg_type": "a", "msg_id": ""}, {}), V1)
    assert isinstance(fine, bytes)
    assert messages.read(fine, V1).kind == "a"
    for wrong in (
        b"", fine[:60], struct.pack("<2Q", 1, 16), struct.pack("<Q", 2**63) + fine[8:],
        fine[:8] + struct.pack("<Q", 0) + fine[16:], fine[:-1],
    ):  # fmt: skip
        with pytest.raises(ValueError, match="frame"):
            messages.read(wrong, V1)


def test_what_a_cell_shows_while_its_socket_is_lost_is_told_to_the_next(
    service: OwnService, api: Api, key: str, kernel: dict[str, Any]
) -> None:
    first = Client(service, key, kernel["id"])
    code = "import pathlib, time\nprint('begun', flush=True)\n"
    code += "while not pathlib.Path('go').exists(): time.sleep(0.01)\nprint('late')"
    ident = first.send("execute_request", code=code)
    while first.next().content.get("text") != "begun\n":
        pass
    first.ws.close()
    (session,) = api.get("/api/v1/sessions").json()["items"]
    path = f"/api/v1/sessions/{session['id']}/files/content?path=go"
    assert api.put(path, content=b"").status_code == 204
    while api.get(f"{KERNELS}/{kernel['id']}").json()["execution_state"] != "idle":
        pass
    second = Client(service, key, kernel["id"])
    with contextlib.closing(second.ws):
        told = [second.next() for _ in range(2)]
    assert [one.content.get("text") for one in told] == ["late\n", None]
    assert told[1].parent_header["msg_id"] == ident


def test_what_is_kept_for_the_next_socket_is_bounded(
    service: OwnService, key: str, kernel: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MAX_MISSED_BYTES", 300)
    found = service.call(
        lambda: service.service.gateway.get(service.service.keys.of_key(key), kernel["id"])
    )
    for n in range(20):
        text = {"name": "stdout", "text": f"{n:03}" * 10}
        service.call(lambda text=text: found.publish(None, "stream", text))
    client = Client(service, key, kernel["id"])
    with contextlib.closing(client.ws):
        assert client.next().content["text"] == "015" * 10


def test_kernels_are_listed_found_and_ended_with_their_sockets(
    client: Client, api: Api, kernel: dict[str, Any]
) -> None:
    specs = api.get("/jupyter/api/kernelspecs").json()
    assert specs["default"] == "python3"
    assert specs["kernelspecs"]["bare"]["spec"]["language"] == "python"
    assert api.get("/jupyter/api/kernelspecs/python3").json() == specs["kernelspecs"]["python3"]
    assert api.get("/jupyter/api/kernelspecs/julia").status_code == 404
    (listed,) = api.get(KERNELS).json()
    assert (listed["id"], listed["connections"]) == (kernel["id"], 1)
    assert api.delete(f"{KERNELS}/{kernel['id']}").status_code == 204
    assert client.next().content == {"execution_state": "dead"}
    with pytest.raises(ConnectionClosed):
        client.next()
    assert api.get(KERNELS).json() == []
    assert api.get("/api/v1/sessions").json()["items"] == []
    gone = api.get(f"{KERNELS}/{kernel['id']}")
    assert (gone.status_code, gone.json()["reason"]) == (404, "not_found")
    wrong = api.post(KERNELS, json={"name": "julia"})
    assert (wrong.status_code, "there are python3" in wrong.json()["message"]) == (404, True)


def test_a_kernel_whose_session_has_expired_is_closed(
    service: OwnService, client: Client, kernel: dict[str, Any]
) -> None:
    def expire() -> Any:
        (found,) = [
            one for one in service.service.gateway._kernels.values() if one.id == kernel["id"]
        ]
        found.hosted.facts.idle_seconds = -1.0
        return service.service.sessions.sweep()

    service.call(expire)
    service.call(service.service.gateway.sweep)
    assert client.next().content == {"execution_state": "dead"}


@pytest.mark.spec("R2.7")
def test_another_tenant_finds_no_kernel(
    service: OwnService, kernel: dict[str, Any], other: Api
) -> None:
    path = f"{KERNELS}/{kernel['id']}"
    assert other.get(KERNELS).json() == []
    for ask in (
        other.get(path), other.delete(path), other.post(f"{path}/interrupt"),
        other.post(f"{path}/restart"),
    ):  # fmt: skip
        assert ask.status_code == 404
    stranger = other.headers["authorization"].removeprefix("Bearer ")
    with pytest.raises(InvalidStatus) as refused:
        Client(service, stranger, kernel["id"])
    assert refused.value.response.status_code == 404


def test_a_key_is_taken_as_jupyter_sends_it_and_nothing_else_is(
    service: OwnService, key: str, kernel: dict[str, Any]
) -> None:
    url = f"{service.url}{KERNELS}"
    with httpx2.Client(trust_env=False, timeout=60) as plain:
        for good in ({"authorization": f"token {key}"}, {"authorization": f"Bearer {key}"}):
            assert plain.get(url, headers=good).status_code == 200
        assert plain.get(f"{url}?token={key}").status_code == 200
        both = plain.get(f"{url}?token={key}", headers={"authorization": f"token {key}"})
        assert both.status_code == 200
        other = plain.get(f"{url}?token={key[:-1]}x", headers={"authorization": f"token {key}"})
        assert other.status_code == 400
        for bad in (
            {}, {"authorization": f"Basic {key}"}, {"authorization": "token"},
            {"authorization": f"token {key}x"}, {"cookie": f"atoll={key}"},
        ):  # fmt: skip
            assert plain.get(url, headers=bad).status_code == 401
    for bad_key in ("", "x", key[:-1] + ("A" if key[-1] != "A" else "B")):
        with pytest.raises(InvalidStatus) as refused:
            Client(service, bad_key, kernel["id"])
        assert refused.value.response.status_code == 401


def test_a_socket_is_refused_to_pages_of_other_sites_and_other_names(
    service: OwnService, key: str, kernel: dict[str, Any]
) -> None:
    url = f"{service.url.replace('http', 'ws', 1)}{KERNELS}/{kernel['id']}/channels?token={key}"
    address = service.url.removeprefix("http://")
    evil = "evil.example"
    for where, origin, status in (
        (url, f"http://{evil}", 403), (url, "null", 403),
        (url.replace(address, evil), f"http://{evil}", 421),
    ):  # fmt: skip
        sock = socket.create_connection(address.split(":"))
        with pytest.raises(InvalidStatus) as refused:
            connect(where, origin=origin, sock=sock, proxy=None).__enter__()  # type: ignore[arg-type]
        assert refused.value.response.status_code == status
    with connect(url, origin=service.url, proxy=None) as own:  # type: ignore[arg-type]
        own.ping().wait(SECONDS)
    with pytest.raises(InvalidStatus) as refused:
        connect(url.replace("/jupyter", ""), proxy=None).__enter__()
    assert refused.value.response.status_code == 404


def test_a_key_that_may_not_execute_opens_no_socket_and_one_that_is_revoked_runs_nothing(
    service: OwnService, api: Api, kernel: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    tenant = f"t{abs(hash(request.node.nodeid))}"
    with pytest.raises(InvalidStatus) as refused:
        Client(service, service.add_key(tenant=tenant, scopes=("sessions",)), kernel["id"])
    assert refused.value.response.status_code == 403
    second = service.add_key(tenant=tenant)
    client = Client(service, second, kernel["id"])
    with contextlib.closing(client.ws):
        assert client.text("1") == "1"
        service.call(lambda: service.service.keys.revoke(second.split("_")[1]))
        reply, shown = client.run("2")
        assert (reply["status"], reply["ename"]) == ("error", "unauthorized")
        assert "execute_input" not in [kind for kind, _ in shown]
    assert api.get(KERNELS).status_code == 200


def test_requests_of_a_socket_count_against_the_key(
    service: OwnService, request: pytest.FixtureRequest
) -> None:
    tenant = f"t{abs(hash(request.node.nodeid))}"
    quota = Quota(requests_per_second=0.001, burst=4, sessions=1, memory_bytes=None)
    key = service.add_key(tenant=tenant, quota=quota)
    with httpx2.Client(base_url=service.url, trust_env=False, timeout=60) as plain:
        plain.headers["authorization"] = f"token {key}"
        made = plain.post(KERNELS, json={"name": "bare"}).json()
        assert plain.post(KERNELS).status_code == 403  # too many kernels
        client = Client(service, key, made["id"])
        with contextlib.closing(client.ws):
            assert client.text("1") == "1"
            assert client.run("2")[0]["ename"] == "rate_limited"
    service.call(lambda: service.service.gateway.end(_only(service, made["id"])))


def _only(service: OwnService, ident: str) -> Any:
    return service.service.gateway._kernels[ident]


def test_the_key_in_an_address_is_not_logged(
    service: OwnService, key: str, kernel: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("uvicorn.error").setLevel(logging.DEBUG)
    client = Client(service, key, kernel["id"])
    with contextlib.closing(client.ws):
        assert client.ask("comm_info_request")["status"] == "ok"
    told = [one.getMessage() for one in caplog.records if one.name != "websockets.client"]
    assert not [text for text in told if key in text]


@pytest.mark.long
def test_a_socket_outlives_the_time_limit_of_a_request_head(
    tmp_path: Any,
) -> None:
    own = OwnService(tmp_path, header_seconds=0.2, max_connections=3)
    url, key = own.start()
    try:
        with httpx2.Client(base_url=url, trust_env=False, timeout=60) as plain:
            plain.headers["authorization"] = f"token {key}"
            made = plain.post(KERNELS, json={"name": "bare"}).json()
        client = Client(own, key, made["id"])
        with contextlib.closing(client.ws):
            assert client.text("import time; time.sleep(0.6)\n1") == "1"
            idle = [socket.create_connection(url.removeprefix("http://").split(":")) for _ in "12"]
            with pytest.raises(InvalidStatus) as refused:
                Client(own, key, made["id"])
            assert refused.value.response.status_code == 503
            for one in idle:
                one.close()
    finally:
        own.stop()


def test_a_socket_is_closed_when_its_key_is_revoked(service, api):
    tenant = api.get("/api/v1/whoami").json()["tenant"]
    key = service.add_key(tenant=tenant)
    ident = api.post(KERNELS, json={}).json()["id"]
    client = Client(service, key, ident)
    assert client.text("1 + 1") == "2"
    assert api.delete(f"/api/v1/keys/{key.split('_')[1]}").status_code == 204
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            client.next()
    assert closed.value.rcvd.code == 1008


class Terminal:
    """A terminal's client: starts one, or joins one by its name."""

    def __init__(
        self, service: OwnService, api: Api, key: str, name: str = "", **body: Any
    ) -> None:
        if not name:
            made = api.post(TERMINALS, json=body)
            assert made.status_code == 201, made.text
            name = made.json()["name"]
        self.name, url = name, service.url.replace("http", "ws", 1)
        self.ws: ClientConnection = connect(
            f"{url}/jupyter/terminals/websocket/{name}?token={key}", proxy=None
        ).__enter__()
        assert json.loads(self.ws.recv(SECONDS)) == ["setup", {}]

    def send(self, *message: Any) -> None:
        self.ws.send(json.dumps(message))

    def until(self, text: str) -> str:
        shown = ""
        while text not in shown:
            kind, content = json.loads(self.ws.recv(SECONDS))
            assert kind == "stdout", kind
            shown += content
        return shown

    def closed(self) -> bool:
        """Whether the service ends it, whatever it printed before."""
        try:
            while json.loads(self.ws.recv(SECONDS)) != ["disconnect", 1]:
                pass
        except ConnectionClosed:
            pass
        return True


def test_a_terminal_in_the_sandbox_of_a_kernel_is_typed_into_resized_and_joined(
    service: OwnService, api: Api, key: str, kernel: dict[str, Any], client: Client
) -> None:
    shell = Terminal(service, api, key, kernel=kernel["id"])
    shell.send("set_size", 33, 99, 0, 0)
    shell.send("stdin", "stty size; echo shared > /app/note; echo tty''=$(tty)\r")
    assert "33 99" in shell.until("tty=/dev/pts/")
    assert client.text("print(open('/app/note').read())") == "shared\n\n"
    assert [one["name"] for one in api.get(TERMINALS).json()] == [shell.name]
    assert api.get(f"{TERMINALS}/{shell.name}").json()["name"] == shell.name
    again = Terminal(service, api, key, name=shell.name)
    assert "33 99" in again.until("tty=/dev/pts/")  # what was printed before it came
    shell.send("stdin", "exit\r")
    assert shell.closed()
    assert again.closed()
    assert api.get(TERMINALS).json() == []
    assert api.get(f"{TERMINALS}/{shell.name}").status_code == 404
    assert api.get(KERNELS).json() != []


def test_a_terminal_of_its_own_ends_with_its_session_and_bad_messages_close_its_socket(
    service: OwnService, api: Api, key: str, other: Api
) -> None:
    shell = Terminal(service, api, key)
    assert other.get(TERMINALS).json() == []
    assert other.delete(f"{TERMINALS}/{shell.name}").status_code == 404
    with pytest.raises(InvalidStatus) as refused:
        Terminal(service, other, other.headers["authorization"].split()[1], name=shell.name)
    assert refused.value.response.status_code == 404
    for bad in ("{}", "[", '["stdin", ["x"]]', '["set_size", 99999999, -1]', "x" * (2 << 20)):
        joined = Terminal(service, api, key, name=shell.name)
        joined.ws.send(bad)
        assert joined.closed(), bad[:30]
    shell.send("stdin", "echo still-''here\r")
    shell.until("still-here")
    assert api.delete(f"{TERMINALS}/{shell.name}").status_code == 204
    assert shell.closed()
    assert api.get("/api/v1/sessions").json()["items"] == []

"""Clients of one daemon: each with its own sessions, found by nobody without the token."""

from __future__ import annotations

import asyncio
import os
import re
import sys

import pytest
from daemon_kit import Notebook, open_notebook, open_plain, until

import atoll
from atoll.backends.daemon import DaemonClientSandbox, connection
from atoll.config import daemon_socket
from atoll.daemon.paths import DaemonPaths
from atoll.sandbox.wire import options


@pytest.mark.spec("R0.19")
async def test_two_clients_do_not_see_each_other(serve):
    daemon = await serve(open_notebook)
    async with atoll.aio.create_sandbox(backend="daemon") as one:
        await one.execute("x = 1")
        async with atoll.aio.create_sandbox(backend="daemon") as two:
            assert await two.get_variable("x", "none") == "none"
            await two.execute("x = 2")
        assert await one.get_variable("x") == 1
    assert daemon.server.stats()["sessions"] == 0


@pytest.mark.spec("R0.19")
async def test_on_windows_the_client_names_the_pipe_and_what_to_do_instead(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delenv("ATOLL_DAEMON_SOCKET", raising=False)
    assert str(daemon_socket()) == r"\\.\pipe\rlm-daemon"
    with pytest.raises(atoll.BackendUnavailableError) as caught:
        await connection.connect(daemon_socket())
    text = r"no daemon answers at \\.\pipe\rlm-daemon: its sandboxes need Linux. Run Atoll in WSL"
    assert text in str(caught.value)
    found = await DaemonClientSandbox.availability(atoll.SandboxConfig())
    assert (found.usable, found.hint) == (False, connection.WINDOWS_HINT)


async def test_a_name_of_another_connection_means_nothing(serve):
    daemon = await serve(open_notebook)
    async with atoll.aio.create_sandbox(backend="daemon") as one:
        stranger = await daemon.link()
        for method in ("execute", "get_variable", "cancel", "destroy", "save", "fork"):
            for name in (one._session, "1", "", None, [], Notebook.opened[0]):
                params = {"session": str(name), "code": "x", "name": "x", "twin": "y"}
                with pytest.raises(atoll.SandboxClosedError, match="no such session"):
                    await stranger.peer.call(method, params)
        assert (await one.execute("x = 1")).success
        stranger.peer.end("done")


async def test_one_name_on_two_connections_is_two_sessions(serve):
    daemon = await serve(open_notebook)
    links = [await daemon.link() for _ in range(2)]
    config = {"config": options.to_wire(atoll.SandboxConfig()), "session": "same"}
    for number, link in enumerate(links):
        await link.peer.call("initialize", config)
        await link.peer.call("execute", {"session": "same", "code": f"x = {number}"})
    for number, link in enumerate(links):
        answer = await link.peer.call("get_variable", {"session": "same", "name": "x"})
        assert answer.value == {"found": True, "value": number}
        link.peer.end("done")


async def test_sandboxes_of_one_loop_share_a_connection(serve, monkeypatch):
    monkeypatch.setattr("atoll.backends.daemon.connection.MAX_SANDBOXES", 2)
    daemon = await serve(open_notebook)
    boxes = [await atoll.aio.create_sandbox(backend="daemon") for _ in range(5)]
    assert daemon.server.stats()["connections"] == 3
    for number, box in enumerate(boxes):
        await box.execute(f"x = {number}")
    assert [await box.get_variable("x") for box in boxes] == list(range(5))
    for box in boxes:
        await box.destroy()


async def test_a_connection_that_nobody_uses_is_closed(serve, monkeypatch):
    monkeypatch.setattr("atoll.backends.daemon.connection.IDLE_SECONDS", 0.1)
    daemon = await serve(open_notebook)
    async with atoll.aio.create_sandbox(backend="daemon"):
        await asyncio.sleep(0.3)
        assert daemon.server.stats()["connections"] == 1
    await until(lambda: daemon.server.stats()["connections"] == 0)


async def test_an_opening_that_is_given_up_leaves_no_session(serve):
    async def slow(config):
        await asyncio.sleep(0.05)
        return await open_notebook(config)

    daemon = await serve(slow)
    for pause in (0, 0.02, 0.045, 0.05, 0.051, 0.055, 0.1):
        opening = asyncio.ensure_future(_open())
        await asyncio.sleep(pause)
        opening.cancel()
        await asyncio.wait({opening})
        if not opening.cancelled():
            await opening.result().destroy()
    await until(lambda: daemon.server.stats()["sessions"] == 0)
    await asyncio.sleep(0.1)
    assert daemon.server.stats()["sessions"] == 0


async def _open():
    return await atoll.aio.create_sandbox(backend="daemon")


async def test_stats_tell_totals_only(serve):
    daemon = await serve(open_notebook)
    async with atoll.aio.create_sandbox(backend="daemon") as box:
        await box.execute("secret = 1")
        facts = (await box._connection.peer.call("stats", {})).value
    assert facts["pid"] == os.getpid()
    assert (facts.pop("pool"), facts.pop("cold_starts")) == ({}, {})
    assert {type(fact) for fact in facts.values()} <= {int, float, str}
    assert (facts["sessions"], facts["executions"]) == (1, 1)
    assert daemon.server.stats()["isolation"] == "jailed"


async def test_a_session_ends_with_its_connection(serve):
    daemon = await serve(open_notebook)
    box = await atoll.aio.create_sandbox(backend="daemon")
    (held,) = Notebook.opened
    box._connection.peer.end("the client died")
    await until(lambda: held.destroyed)
    await until(lambda: daemon.server.stats()["sessions"] == 0)


async def test_a_kept_session_is_found_again_by_its_token(serve):
    await serve(open_notebook)
    first = DaemonClientSandbox(keep=True)
    await first.initialize()
    await first.execute("x = 41")
    token = first.token
    first._connection.peer.end("the client died")
    with pytest.raises(atoll.SandboxLostError):
        await first.execute("x")
    second = DaemonClientSandbox(token=token)
    await second.initialize()
    assert await second.get_variable("x") == 41
    await second.detach()
    third = DaemonClientSandbox(token=token)
    await third.initialize()
    await third.destroy()
    with pytest.raises(atoll.SandboxClosedError, match="no session has this token"):
        await DaemonClientSandbox(token=token).initialize()


async def test_a_token_cannot_be_guessed(serve):
    await serve(open_notebook)
    kept = DaemonClientSandbox(keep=True)
    await kept.initialize()
    plain = DaemonClientSandbox()
    await plain.initialize()
    assert plain.token is None
    assert re.fullmatch(r"[\w-]{43}", kept.token)
    for guess in ("", kept.token[:-1], kept.token + "x", kept.token.swapcase(), "1", "\ud800"):
        with pytest.raises(atoll.SandboxClosedError, match="no session has this token"):
            await DaemonClientSandbox(token=guess).initialize()
    await kept.destroy()
    await plain.destroy()


async def test_a_repeated_call_gets_the_first_ones_result(serve):
    """The connection is lost while the cell runs; its client comes back and asks again."""
    await serve(open_notebook)
    first = DaemonClientSandbox(keep=True)
    await first.initialize()
    cell = asyncio.create_task(first.execute("wait", key="once"))
    await until(lambda: first._connection.peer._outbox.size == 0)
    await asyncio.sleep(0.05)
    first._connection.peer.end("lost")
    with pytest.raises(atoll.SandboxLostError):
        await cell
    second = DaemonClientSandbox(token=first.token)
    (held,) = Notebook.opened
    again = asyncio.create_task(_attach_and_run(second, "wait"))
    await asyncio.sleep(0.05)
    assert not again.done()
    held.release.set()
    assert (await again).success
    assert held.waited == 1
    await second.destroy()


async def _attach_and_run(box, code):
    await box.initialize()
    return await box.execute(code, key="once")


async def test_powers_and_their_errors_cross(serve):
    await serve(open_notebook)
    async with atoll.aio.create_sandbox(backend="daemon") as box:
        await box.execute("x = 1")
        mark = await box.checkpoint()
        await box.execute("x = 2")
        twin = await box.fork()
        await box.rollback(mark)
        assert await box.branches() == (mark,)
        assert (await box.get_variable("x"), await twin.get_variable("x")) == (1, 2)
        with pytest.raises(atoll.StateError, match="no mark 'none'"):
            await box.rollback("none")
        saved = await twin.save()
        await twin.destroy()
        assert await box.get_variable("x") == 1, "the twin's end is not the end of the connection"
        assert len((await box.execute("state")).state) == 1_000_000
    async with atoll.aio.create_sandbox(backend="daemon", state=saved) as other:
        assert await other.get_variable("x") == 2


async def test_a_context_lives_as_long_as_a_session_that_uses_it(serve):
    await serve(open_notebook)
    text = "c" * 100_000
    async with atoll.aio.create_sandbox(backend="daemon"):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            box = await atoll.aio.create_sandbox(backend="daemon", context=text)
            twin = await box.fork()
            held = Notebook.opened[-1].config.context
            await box.destroy()
            assert held.length == len(text)
            assert os.fstat(held.fd).st_size > len(text)
            await twin.destroy()
            Notebook.opened.clear()
            del box, twin, held
        assert len(os.listdir("/proc/self/fd")) <= before + 1


async def test_a_backend_without_a_power_says_so(serve):
    await serve(open_plain)
    async with atoll.aio.create_sandbox(backend="daemon") as box:
        for call in (box.fork, box.checkpoint, box.branches, box.save):
            with pytest.raises(atoll.UnsupportedError, match="cannot"):
                await call()


async def test_a_daemon_weaker_than_asked_is_refused(serve, monkeypatch):
    monkeypatch.setattr(Notebook, "isolation", atoll.Isolation.CONFINED)
    daemon = await serve(open_notebook)
    with pytest.raises(atoll.IsolationError, match="jailed was asked for; it offers confined"):
        await atoll.aio.create_sandbox(backend="daemon")
    await until(lambda: daemon.server.stats()["sessions"] == 0, 3)  # the connection is open still
    async with atoll.aio.create_sandbox(backend="daemon", min_isolation="confined") as box:
        monkeypatch.setattr(Notebook, "isolation", atoll.Isolation.NONE)
        with pytest.raises(atoll.IsolationError):
            await box.execute("x")


async def test_executions_wait_their_turn_and_past_the_queue_are_refused(serve):
    await serve(open_notebook, max_running=1, max_queue=2)
    boxes = [await atoll.aio.create_sandbox(backend="daemon") for _ in range(4)]
    cells = []
    for box in boxes:
        cells.append(asyncio.create_task(box.execute("wait")))
        await asyncio.sleep(0.02)
    with pytest.raises(atoll.BusyError) as caught:
        await cells[3]
    assert caught.value.retryable
    for notebook, cell in zip(Notebook.opened, cells[:3], strict=False):
        notebook.release.set()
        assert (await cell).success
    assert (await boxes[3].execute("x = 1")).success
    for box in boxes:
        await box.destroy()


async def test_a_client_of_which_nothing_runs_does_not_wait_for_another(serve):
    daemon = await serve(open_notebook, max_running=1)
    boxes = [await atoll.aio.create_sandbox(backend="daemon") for _ in range(3)]
    cells = [asyncio.create_task(box.execute("wait")) for box in boxes]
    await until(lambda: daemon.server.stats()["queued"] == 2, 3)

    def other() -> bool:  # a connection of its own
        with atoll.create_sandbox(backend="daemon") as box:
            return box.execute("x = 1").success

    assert await asyncio.to_thread(other)
    assert daemon.server.stats()["queued"] == 2
    for notebook in Notebook.opened[:3]:
        notebook.release.set()
    assert all(one.success for one in await asyncio.gather(*cells))
    for box in boxes:
        await box.destroy()


async def test_a_cell_that_waits_for_its_turn_can_be_cancelled(serve):
    await serve(open_notebook, max_running=1)
    one, two = [await atoll.aio.create_sandbox(backend="daemon") for _ in range(2)]
    running = asyncio.create_task(one.execute("wait"))
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(two.execute("x = 1"))
    await asyncio.sleep(0.05)
    await two.cancel()
    result = await waiting
    assert (result.kind, result.exit_code, result.success) == ("cancelled", 130, False)
    await one.cancel()
    assert (await running).success
    assert await two.get_variable("x", "not run") == "not run"
    for box in (one, two):
        await box.destroy()


async def test_a_command_that_waits_for_its_turn_can_be_cancelled(serve):
    served = await serve(max_running=1)
    one, two = [await atoll.aio.create_sandbox(backend="daemon") for _ in range(2)]
    running = asyncio.create_task(one.shell("until [ -e go ]; do sleep 0.02; done; echo ran"))
    await until(lambda: served.server._concurrency.running == 1)
    waiting = asyncio.create_task(two.shell("touch ran"))
    await until(lambda: served.server._concurrency.waiting == 1)
    await two.cancel()
    assert await waiting == atoll.ExecuteResponse(
        output="", exit_code=130, error="the command was cancelled"
    )
    await one.cancel()
    assert (await running).exit_code == 130
    assert (await two.shell("ls")).output == ""
    for box in (one, two):
        await box.destroy()


async def test_a_backend_of_the_daemons_without_a_shell_says_so(serve):
    await serve(open_notebook)
    async with atoll.aio.create_sandbox(backend="daemon") as box:
        with pytest.raises(atoll.UnsupportedError, match="'notebook' cannot run shell commands"):
            await box.shell("true")


async def test_executions_within_executions_do_not_wait_for_each_other_for_ever(serve):
    await serve(max_running=1, max_queue=10)

    async def descend(task, context):
        if task == "0":
            return "bottom"
        async with atoll.aio.create_sandbox(backend="daemon", on_rlm_query=descend) as box:
            return (await box.execute(f"rlm_query('{int(task) - 1}')", timeout_ms=10_000)).value

    assert await descend("2", None) == "bottom"


@pytest.mark.parametrize("limits", [{"max_sessions": 2}, {"max_sessions_per_connection": 2}])
async def test_sessions_are_limited(serve, limits):
    daemon = await serve(open_notebook, **limits)
    link = await daemon.link()
    config = {"config": options.to_wire(atoll.SandboxConfig())}
    for name in "12":
        await link.peer.call("initialize", {**config, "session": name})
    with pytest.raises(atoll.BusyError):
        await link.peer.call("initialize", {**config, "session": "3"})
    await link.peer.call("destroy", {"session": "1"})
    await link.peer.call("initialize", {**config, "session": "3"})
    link.peer.end("done")
    await until(lambda: daemon.server.stats()["sessions"] == 0)


async def test_auto_uses_a_daemon_that_runs_and_native_without_one(serve, monkeypatch, tmp_path):
    async with atoll.aio.create_sandbox() as box:
        assert box.backend == "native"
    await serve()
    async with atoll.aio.create_sandbox() as box:
        assert box.backend == "daemon"
        assert (await box.execute("6 * 7")).value == 42
    stale = tmp_path / "stale.sock"
    DaemonPaths(stale).listen().close()
    assert stale.exists()
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(stale))
    async with atoll.aio.create_sandbox() as box:
        assert box.backend == "native"
    found = await DaemonClientSandbox.availability(atoll.SandboxConfig())
    assert (found.usable, found.hint) == (False, "Type: atoll daemon start")


async def test_auto_passes_a_daemon_by_that_is_too_weak(serve, monkeypatch):
    monkeypatch.setattr(Notebook, "isolation", atoll.Isolation.CONFINED)
    await serve(open_notebook)
    async with atoll.aio.create_sandbox() as box:
        assert box.backend == "native"


async def test_what_starts_cold_says_why_in_result_status_and_log(serve, tmp_path, caplog):
    why = "the sandbox has a working folder of the host"

    async def cold(config):
        box = Notebook(config)
        box.cold_start = why if config.workspace else None
        return box

    daemon = await serve(cold)
    caplog.set_level("INFO", "atoll.daemon")
    for workspace in (tmp_path, None, tmp_path):
        async with atoll.aio.create_sandbox(backend="daemon", workspace=workspace) as box:
            result = await box.execute("x")
            assert result.cold_start == (why if workspace else None)
    assert daemon.server.stats()["cold_starts"] == {why: 2}
    assert caplog.text.count(f"a cold start: {why}") == 2


async def test_a_failure_at_the_start_that_has_passed_is_forgotten(serve):
    """The daemon tries again whether sandboxes can be opened: it need not be restarted."""
    works = []

    async def opener(config):
        if not works:
            raise atoll.SandboxStartError("fork", "Resource temporarily unavailable")
        return Notebook(config)

    daemon = await serve(opener, idle_seconds=0.2)
    assert daemon.server.stats()["isolation"] is None
    assert "temporarily" in daemon.server.stats()["reason"]
    works.append(True)
    await until(lambda: daemon.server.stats()["isolation"] == "jailed")
    assert daemon.server.stats()["reason"] == ""

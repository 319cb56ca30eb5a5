"""A scenario of `make soak-http`: requests under idempotency keys while processes are killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import secrets
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.soak_server import Server

CODE = "print(tick({nonce!r}))"
WORKERS = 8
REQUESTS_A_KILL = 40
KILLS_A_LINE = 25
VICTIMS = ("zygote", "zygote_host", "supervisor", "service")
CLEAR = {"session_lost", "outcome_unknown"}
"""Error codes of a request that was begun and whose outcome is lost."""
TRIES = 400
LEFT_SECONDS = 30


class Requests:
    """Clients that each ask under a new key, again and again until there is a clear answer."""

    def __init__(self, server: Server, count: int) -> None:
        self._server, self._left = server, iter(range(count))
        self._lock = threading.Lock()
        self.done = 0
        self.ticks: Counter[str] = Counter()
        """How often the code of each key called its tool, so how often it ran."""
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[list[threading.Thread]]:
        """Yield the clients; wait for all of them at the end."""
        workers = [threading.Thread(target=self._work) for _ in range(WORKERS)]
        for one in workers:
            one.start()
        yield workers
        for one in workers:
            one.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if next(self._left, None) is None:
                    return
            nonce = secrets.token_hex(8)
            end = self._ask(nonce)
            with self._lock:
                self.ends[end] += 1
                self.done += 1

    def _ask(self, nonce: str) -> str:
        for _ in range(TRIES):
            try:
                kind, told = self._follow(nonce)
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.1)
                continue
            if kind == "result" and told["kind"] == "ok":
                if told["stdout"] != f"{nonce}\n":
                    self.wrong.append(f"a wrong answer: {told['stdout']!r}")
                return "answered"
            if kind == "result":
                return f"told: {told['kind']}"
            if told["code"] in CLEAR:
                return f"told: {told['code']}"
            if not told["retryable"] and told["code"] != "cancelled":
                self.wrong.append(f"an unclear end: {told}")
                return f"told: {told['code']}"
            time.sleep(0.1)
        self.wrong.append(f"no answer after {TRIES} tries")
        return "no answer"

    def _follow(self, nonce: str) -> tuple[str, dict[str, Any]]:
        body = {"code": CODE.format(nonce=nonce), "tools": [{"name": "tick"}], "template": "bare"}
        headers = {"accept": "application/x-ndjson", "idempotency-key": nonce,
                   "authorization": f"Bearer {self._server.key}"}  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", "/api/v1/run", json.dumps(body), headers)
            with connection.getresponse() as answer:
                if answer.status != 200:
                    return "fault", json.load(answer)
                return self._last_event(answer)

    def _last_event(self, answer: http.client.HTTPResponse) -> tuple[str, dict[str, Any]]:
        execution = ""
        for line in answer:
            event = json.loads(line)
            if event["type"] == "accepted":
                execution = event["execution"]
            elif event["type"] == "tool_call":
                self._tick(execution, event)
            elif event["type"] in ("result", "fault"):
                return event["type"], event["result" if event["type"] == "result" else "problem"]
        raise ValueError("the stream broke off")

    def _tick(self, execution: str, event: dict[str, Any]) -> None:
        nonce = event["args"][0]
        with self._lock:
            self.ticks[f"{nonce} {execution}"] += 0
        result = [{"id": event["id"], "value": nonce}]
        status, _ = self._server.ask("POST", f"/api/v1/executions/{execution}/tool_results", result)
        if status in (204, 409):  # 409: another reader of the same execution was first
            with self._lock:
                self.ticks[f"{nonce} {execution}"] = 1


def kills(server: Server, count: int) -> list[str]:
    """Kill zygotes, zygote hosts, supervisors and the service while clients ask."""
    asked, killed = Requests(server, count), Counter[str]()
    seen: dict[int, str] = {}
    with asked.running() as workers:
        while any(one.is_alive() for one in workers):
            time.sleep(random.uniform(0.02, 0.2))
            if asked.done >= REQUESTS_A_KILL * (killed.total() + 1):
                victim = VICTIMS[killed.total() % len(VICTIMS)]
                if victim == "service":
                    seen |= _started(server)
                killed[victim] += server.kill(victim)
                if killed.total() % KILLS_A_LINE == 0:
                    print(f"  {asked.done} so far: {dict(asked.ends)}", flush=True)
    runs = Counter(name.split()[0] for name in asked.ticks)
    twice = sum(times > 1 for times in runs.values())
    print(f"  {count} requests, killed {dict(killed)}: {dict(asked.ends)}; run twice: {twice}")
    return [
        *asked.wrong[:5],
        *([f"{twice} ran twice under one key"] if twice else []),
        *_too_many_lost(asked.ends, killed),
        *_orphans(seen),
    ]


def _too_many_lost(ends: Counter[str], killed: Counter[str]) -> list[str]:
    """Return a message if more requests were lost than were running at the kills."""
    lost, most = ends.total() - ends["answered"], killed.total() * WORKERS
    return [f"{lost} lost by {killed.total()} kills of at most {WORKERS}"] if lost > most else []


def _started(server: Server) -> dict[int, str]:
    """Every process of the service, with the time of its start."""
    return {pid: _start(pid) for pid in processes.descendants(server.process.pid)}


def _orphans(seen: dict[int, str]) -> list[str]:
    """Return a message if processes of a killed service are still running."""
    end = time.monotonic() + LEFT_SECONDS
    while left := [pid for pid, start in seen.items() if start and _start(pid) == start]:
        if time.monotonic() > end:
            return [f"{len(left)} processes of killed services live on"]
        time.sleep(0.1)
    print(f"  of {len(seen)} processes of killed services none lives on")
    return []


def _start(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""

"""A scenario of `make soak-http`: sessions that stay open, a tenth of them in use for an hour.

An hour's worth is a cell every ten seconds in each session in use, sent as fast as they are
answered.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import processes

if TYPE_CHECKING:
    from bench.soak_server import Server

CELLS_AN_HOUR = 360
ROUNDS = 6
"""Parts of the hour."""
SETTLED = 4
"""Parts in which the rings of finished executions and of cells, which are bounded, get full."""
CONNECTIONS = 8
GROWTH = 16 << 20
CODE = "x = [n * n for n in range(1000)]; print(len(x))"


@dataclass(frozen=True, slots=True)
class Held:
    """Memory and descriptors of the service and its sandboxes at one moment."""

    service: int
    guests: int
    descriptors: int
    processes: int

    @classmethod
    def of(cls, server: Server) -> Held:
        """Measure it."""
        below = processes.descendants(server.process.pid)
        return cls(
            service=server.memory,
            guests=sum(map(processes.own_memory, below)),
            descriptors=processes.descriptors(server.process.pid),
            processes=len(below),
        )


def many_sessions(server: Server, count: int) -> list[str]:
    """Open sessions, use a tenth of them for an hour's worth of cells; check that nothing grows."""
    idents: list[str] = []
    for _ in range(count):
        status, told = server.ask("POST", "/api/v1/sessions", {"template": "bare"})
        if status != 201:
            return [f"after {len(idents)} sessions: {told[:200]!r}"]
        idents.append(json.loads(told)["id"])
    busy = idents[:: max(1, count // 100)]
    held: list[Held] = []
    for _ in range(ROUNDS):
        if wrong := _use(server, busy, CELLS_AN_HOUR // ROUNDS):
            return wrong
        held.append(Held.of(server))
        print(f"  {len(held) * len(busy) * CELLS_AN_HOUR // ROUNDS} cells: {held[-1]}", flush=True)
    for ident in idents:
        server.ask("DELETE", f"/api/v1/sessions/{ident}")
    return _grown(held[SETTLED - 1], held[-1], count, len(busy))


def _use(server: Server, busy: list[str], times: int) -> list[str]:
    """Run cells in every session, over a few connections that are kept."""
    parts = [busy[n::CONNECTIONS] for n in range(CONNECTIONS)]
    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as threads:
        found = threads.map(lambda part: _run_cells(server, part, times), parts)
        return [one for one in found if one][:3]


def _run_cells(server: Server, idents: list[str], times: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    headers = {"authorization": f"Bearer {server.key}"}
    body = json.dumps({"code": CODE})
    try:
        for ident in idents * times:
            connection.request("POST", f"/api/v1/sessions/{ident}/executions", body, headers)
            answer = connection.getresponse()
            told = json.load(answer)
            if answer.status != 200 or told["stdout"] != "1000\n":
                return f"{answer.status}: {told}"
    finally:
        connection.close()
    return ""


def _grown(before: Held, after: Held, count: int, busy: int) -> list[str]:
    memory = after.service - before.service
    guests, open_files = after.guests - before.guests, after.descriptors - before.descriptors
    more = after.processes - before.processes
    print(
        f"  {count} sessions, {busy * CELLS_AN_HOUR} cells in {busy} of them: the service grew "
        f"by {memory / (1 << 20):.1f} MiB, its sandboxes by {guests / (1 << 20):.1f} MiB, "
        f"descriptors by {open_files}, processes by {more}"
    )
    wrong = [f"the service grew by {memory >> 20} MiB"] if memory > GROWTH else []
    wrong += [f"sandboxes grew by {guests >> 20} MiB"] if guests > GROWTH else []
    wrong += [f"{open_files} more descriptors"] if open_files > CONNECTIONS else []
    return wrong + ([f"{more} more processes"] if more > 2 else [])

"""The child side of a process for hostile input: its limits, its confinement, its request loop.

A frame is two lengths, a JSON object and bytes. An error in the input is an answer; the host itself
detects that the process died.

SECURITY: the first request is `prepare`. It imports everything that later requests need and then
confines the process; only after that is the input parsed.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from atoll.errors import ArchiveError, ArchiveLimitError, ConfigError

FRAME = struct.Struct(">II")
Reply = tuple[Mapping[str, Any], bytes]
"""What a request is answered with: a header of plain data, and bytes."""
Handler = Callable[..., Reply]


def serve(handlers: dict[str, Handler], load: Callable[..., None]) -> None:
    """Answer requests until the host closes the pipe; after `load` nothing can be imported."""
    requests, answers = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's output must not mix with answers
    memory, seconds = int(sys.argv[2]), float(sys.argv[3])
    _limit(memory)
    known: dict[str, Handler] = {"prepare": lambda **facts: _prepare(load, facts)}
    while (request := _receive(requests)) is not None:
        _grant_cpu(seconds)
        header, payload = _answer(known, request)
        text = json.dumps(header).encode()
        answers.write(FRAME.pack(len(text), len(payload)) + text)
        answers.write(payload)
        answers.flush()
        if "confined" in header:
            known = handlers


def _prepare(load: Callable[..., None], facts: Mapping[str, Any]) -> Reply:
    load(**facts)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    confined = _raise_walls()
    if not confined:  # this also forbids threads, which ppmd starts
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    return {"confined": confined}, b""


def _raise_walls() -> bool:
    if sys.platform != "linux":
        return False
    from atoll.jail.walls.secluded import seclude  # noqa: PLC0415 - of Linux's system calls

    return seclude()


def _answer(handlers: dict[str, Handler], request: dict[str, Any]) -> Reply:
    operation = request.pop("operation")
    try:
        return handlers[operation](**request)
    except ArchiveLimitError as exc:
        fact = {"limit": exc.limit, "value": exc.value, "most": exc.most, "what": exc.what}
        return {"fault": "limit", **fact}, b""
    except ConfigError as exc:
        return {"fault": "config", "text": str(exc)}, b""
    except ArchiveError as exc:
        return {"fault": "archive", "text": str(exc)}, b""
    except (MemoryError, RecursionError) as exc:
        return {"fault": "memory", "text": type(exc).__name__}, b""
    except Exception as exc:  # noqa: BLE001 - a library may raise anything on hostile input
        return {
            "fault": "archive",
            "text": f"it is damaged: {type(exc).__name__}: {exc}"[:500],
        }, b""


def _receive(requests: IO[bytes]) -> dict[str, Any] | None:
    head = requests.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    size, rest = FRAME.unpack(head)
    request: dict[str, Any] = json.loads(requests.read(size))
    if rest:
        request["payload"] = requests.read(rest)
    return request


def _limit(memory: int) -> None:
    """Limit the memory, and forbid core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))  # py7zr asks for this one
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def _grant_cpu(seconds: float) -> None:
    """Set the CPU limit of one request: the process ends by itself even if the host has died."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime + seconds) + 3
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))

"""The process that parses: each line of its input is a path and a text, each line out their units.

SECURITY: parsers in C read files of a hostile guest here, so this process has no secrets and little
memory, and it may crash. The host validates what it writes.
"""

from __future__ import annotations

import json
import resource
import sys

from atoll.retrieval.chunks import chunk
from atoll.retrieval.types import Unit

MEMORY_BYTES = 1 << 30
_LARGEST_FILE, _MOST_OPEN = 64 << 20, 64
_LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_FSIZE: _LARGEST_FILE,  # grammars are unpacked once
    resource.RLIMIT_NOFILE: _MOST_OPEN,
    resource.RLIMIT_CORE: 0,
}


def main() -> None:
    """Answer requests until the end of the input."""
    for limit, value in _LIMITS.items():
        resource.setrlimit(limit, (value, value))
    for line in sys.stdin.buffer:
        path, text, most = json.loads(line)
        answer = [_record(unit) for unit in chunk(path, text, most)]
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _record(unit: Unit) -> dict[str, object]:
    return {name: getattr(unit, name) for name in Unit.__annotations__}


def read_units(line: bytes, path: str, most: int) -> list[Unit]:
    """Return the units of an answer; ValueError if it is not a valid one."""
    answer = json.loads(line)
    if not isinstance(answer, list) or len(answer) > most:
        raise ValueError("not a list of so many units")
    return [_checked(one, path) for one in answer]


def _checked(record: object, path: str) -> Unit:
    if not isinstance(record, dict) or record.keys() != Unit.__annotations__.keys():
        raise ValueError("not a unit")
    for name, kind in Unit.__annotations__.items():
        if type(record[name]).__name__ != kind:
            raise ValueError(f"{name} is not of type {kind}")
    return Unit(**{**record, "path": path})


if __name__ == "__main__":
    main()

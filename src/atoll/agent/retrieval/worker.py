"""The program that parses one language; `archive.process` starts it and confines it.

SECURITY: parsers in C read files of a hostile guest here, so this process has no secrets, little
memory and no way out, and it may crash. The host validates what it writes.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from atoll.agent.archive.confined import serve
from atoll.agent.retrieval.types import Unit
from atoll.agent.retrieval.units import chunk

if TYPE_CHECKING:
    from atoll.agent.archive.confined import Reply

MEMORY_BYTES = 1 << 30


def main() -> None:
    """Serve requests until the parent closes the connection."""
    serve({"units": units}, load)


def load(grammar: str, folder: str) -> None:
    """Load the grammar of a language, which is unpacked into the folder once; "" for Python's."""
    if grammar:
        os.environ["SEMBLE_GRAMMARS_CACHE_DIR"] = folder
        from semble_grammars import get_language  # noqa: PLC0415 - an extra

        get_language(grammar)


def units(path: str, most: int, payload: bytes = b"") -> Reply:
    """Return the units of a file."""
    units = chunk(path, payload.decode("utf-8", "surrogatepass"), most)
    records = [{name: getattr(unit, name) for name in Unit.__annotations__} for unit in units]
    return {}, json.dumps(records).encode()


def read_units(answer: bytes, path: str, most: int) -> list[Unit]:
    """Return the units of an answer; ValueError if it is not a valid one."""
    records = json.loads(answer)
    if not isinstance(records, list) or len(records) > most:
        raise ValueError("not a list of so many units")
    return [_checked(record, path) for record in records]


def _checked(record: object, path: str) -> Unit:
    if not isinstance(record, dict) or record.keys() != Unit.__annotations__.keys():
        raise ValueError("not a unit")
    for name, kind in Unit.__annotations__.items():
        if type(record[name]).__name__ != kind:
            raise ValueError(f"{name} is not of type {kind}")
    return Unit(**{**record, "path": path})

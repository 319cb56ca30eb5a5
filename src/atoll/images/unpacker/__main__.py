"""Unpacks one layer into the working folder: tree/ has its files, owners.json their owners.

    python -m unpacker BLOB MOST_BYTES MOST_ENTRIES [LOWER ...]

LOWER are the folders of the layers below, highest first.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import zlib

from .layer import Layer, Room
from .merged import HostileLayerError
from .stream import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_RATIO, LEAST_ALLOWED = 300, 1 << 30
"""A layer may unpack to so many times its size, or to so many bytes."""
_FAILURES = (HostileLayerError, tarfile.TarError, OSError, ValueError, EOFError, zlib.error)


def main(blob: str, most: str, entries: str, *lower: str) -> int:
    """Unpack the layer; print one JSON object: an error, or its digest and size."""
    report: dict[str, Any]
    try:
        allowed = min(int(most), max(LEAST_ALLOWED, os.path.getsize(blob) * MOST_RATIO))
        os.mkdir("tree")
        with open(blob, "rb") as file:
            stream = Stream(file, allowed)
            layer = Layer(lower, Room(allowed, int(entries)))
            os.chdir("tree")
            layer.fill(stream)
            os.chdir("..")
        with open("owners.json", "w", encoding="utf-8", errors="surrogateescape") as owners:
            json.dump(layer.owners, owners, ensure_ascii=True)
        report = {"diff_id": f"sha256:{stream.hash.hexdigest()}", "size": layer.room.taken}
        report["dropped"] = layer.dropped
    except _FAILURES as exc:
        report = {"error": f"{exc}"[:500], "errno": getattr(exc, "errno", None)}
    except (RecursionError, MemoryError, OverflowError) as exc:
        report = {"error": f"its tar is malformed ({type(exc).__name__})", "errno": None}
    sys.stdout.write(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""What the tests of retrieval are written with."""

from __future__ import annotations

from pathlib import Path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)

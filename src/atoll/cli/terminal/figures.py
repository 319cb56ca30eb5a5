"""Saves the figures of a cell as files; run and repl use it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cli.commands import cells
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.types import Display

SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}
MOST = 10_000
"""The highest number in a file's name."""


class FigureFolder:
    """The folder that figures are saved to, as figure-1.png and so on; no file is overwritten."""

    def __init__(self, path: str | None) -> None:
        self._folder = Path(path or ".")
        if self._folder.exists() and not self._folder.is_dir():
            raise ConfigError(f"--figures: {path} is not a folder")

    def save(self, displays: Iterable[Display]) -> list[Path]:
        """Save the images, say so on stderr, and return the files."""
        images = [one for one in displays if one.media_type in SUFFIXES]
        found = [self._save(one.data, SUFFIXES[one.media_type]) for one in images]
        saved = [path for path in found if path is not None]
        if saved:
            what = "figures" if len(saved) > 1 else "figure"
            cells.complain(f"{what} saved: {', '.join(map(str, saved))}")
        return saved

    def _save(self, data: bytes, suffix: str) -> Path | None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path, fd = self._create(suffix)
            with open(fd, "wb") as file:
                file.write(data)
        except OSError as exc:
            where = f"a figure cannot be saved in {self._folder.absolute()}: {exc.strerror}"
            cells.complain(f"{where}. Use --figures DIR")
            return None
        return path

    def _create(self, suffix: str) -> tuple[Path, int]:
        for number in itertools.count(1):
            path = self._folder / f"figure-{number}{suffix}"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                return path, os.open(path, flags, 0o666)
            except FileExistsError:
                if number >= MOST:
                    raise
        raise AssertionError("unreachable")

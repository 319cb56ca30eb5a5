"""Pure Python packages for guests: put into a folder that each sees as /app/site-packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.config import cache_folder

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.backends.wasm.build import Built


def package_folder(built: Built) -> Path:
    """Where the packages for this component's Python are."""
    version = ".".join(map(str, built.python[:2]))
    folder = cache_folder() / "wasm" / f"site-packages-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder

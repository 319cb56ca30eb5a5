"""An image of this machine's own files, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import rootfs


@pytest.fixture(scope="session")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an image's one layer."""
    folder = tmp_path_factory.mktemp("image") / "layer"
    folder.parent.chmod(0o755)
    folder.mkdir(mode=0o755)
    return rootfs.make(folder)

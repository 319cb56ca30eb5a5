"""An image of this machine's own files, made once."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.fixture(scope="session")
def image(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the reference of an image with variables, a user and an entry point."""
    folder = tmp_path_factory.mktemp("layout") / "oci"
    folder.parent.chmod(0o755)
    config = {"Env": ["GREETING=hello", "PATH=/opt/tools:/usr/bin:/bin"], "Entrypoint": ["/nope"]}
    rootfs.write_layout(folder, layer, **config)
    return f"oci:{folder}"


@pytest.fixture
def make_image(layer: Path, tmp_path: Path) -> Callable[[Callable[[Path], None]], str]:
    """Return a function that makes an image with one more layer, which a function fills."""

    def make(fill: Callable[[Path], None]) -> str:
        top = tmp_path / "top"
        top.mkdir(mode=0o755)
        fill(top)
        return f"oci:{rootfs.write_layout(tmp_path / 'oci', layer, top)}"

    return make

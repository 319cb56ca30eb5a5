"""Backends with a container image as the root of their sandboxes: contract and attacks run there too."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rootfs

from atoll import factory

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox

_TAIL = "-image"
IN_IMAGE = tuple(f"{backend}{_TAIL}" for backend in ("native", "daemon"))
"""Cases of the fixture `backend`: the backend is tested with an image of this machine's files."""
_in_use: list[str] = []


def backend_of(case: str) -> str:
    """Return the backend of a case, with an image or without."""
    return case.removesuffix(_TAIL) if case in IN_IMAGE else case


def image_in_use() -> str | None:
    """Return the image of the sandboxes that are opened now."""
    return _in_use[-1] if _in_use else None


@contextmanager
def opened_in_image(case: str) -> Iterator[None]:
    """Open every sandbox that names neither an image nor a Python with the image of the case."""
    if case not in IN_IMAGE:
        yield
        return
    image, plain = own_image(), factory.open_sandbox

    async def open_sandbox(config: SandboxConfig, *needed: Any) -> BaseSandbox:
        if config.image is None and config.python is None:
            config = dataclasses.replace(config, image=image)
        return await plain(config, *needed)

    _in_use.append(image)
    factory.open_sandbox = open_sandbox  # type: ignore[assignment]
    try:
        yield
    finally:
        factory.open_sandbox = plain
        _in_use.remove(image)


@functools.cache
def own_image() -> str:
    """Return an image of this machine's own Python and programs; its digest is always the same."""
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    folder.chmod(0o755)
    layers = folder / "system", folder / "libraries"
    for layer in layers:
        layer.mkdir(mode=0o755)
    rootfs.write_layout(folder / "oci", rootfs.make(layers[0]), rootfs.make_libraries(layers[1]))
    return f"oci:{folder}/oci"

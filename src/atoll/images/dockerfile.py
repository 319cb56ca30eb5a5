"""Builds an image from a Dockerfile by an engine that is installed: buildah, podman or docker."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from atoll.errors import ConfigError, ImageError
from atoll.images import store
from atoll.images.obtain import get_image, name_image
from atoll.images.reference import parse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atoll.images.image import HeldImage

ENGINES = ("buildah", "podman", "docker")


def build_dockerfile(
    context: str, name: str, *, file: str | None = None, arguments: Sequence[str] = ()
) -> HeldImage:
    """Build an image and store it under a name. The engine's output goes to stderr. This blocks."""
    dockerfile = file or os.path.join(context, "Dockerfile")
    if not os.path.isdir(context):
        raise ConfigError(f"{context!r} is not a folder")
    if not os.path.isfile(dockerfile):
        raise ConfigError(f"there is no {dockerfile}: name the Dockerfile with --file")
    engine = next((engine for engine in ENGINES if shutil.which(engine)), None)
    if engine is None:
        hint = "Type: sudo apt-get install buildah (it needs no daemon and no root to build)"
        raise ImageError(
            name, "a Dockerfile needs buildah, podman or docker, and none is here", hint
        )
    with store.scratch() as scratch:
        given = [f"--build-arg={argument}" for argument in arguments]
        note = scratch / "id"
        _run(engine, "build", "--iidfile", str(note), "--file", dockerfile, *given, context)
        reference = _export(engine, note.read_text().strip(), scratch)
        held = get_image(reference)
        store.forget_name(str(parse(reference)))  # its files go with this block
    return name_image(held, name)


def _export(engine: str, identity: str, scratch: Path) -> str:
    """Write what an engine has built to a file; return the reference of that."""
    if engine == "docker":
        _run(engine, "save", "--output", str(scratch / "image.tar"), identity)
        return f"docker-archive:{scratch}/image.tar"
    _run(engine, "push", "--quiet", identity, f"oci:{scratch}/image")
    return f"oci:{scratch}/image"


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=False)
    if done.returncode != 0:
        raise ImageError("", f"`{command[0]} {command[1]}` failed with code {done.returncode}")

"""cloudpickle for guests: the host's own copy, bound read-only beside the guest runtime.

It is pure Python, so a guest's interpreter of any version can use it without having it installed.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from atoll.guest.state.pickler import MISSING
from atoll.jail.supervisor.spec import GUEST_CODE, Bind

GUEST_FOLDER = f"{GUEST_CODE}/lib/cloudpickle"


def binds() -> list[Bind]:
    """Return the binds that a jail needs for it."""
    folder = _host_folder()
    return [Bind(source=folder, target=GUEST_FOLDER)] if folder else []


def folder_in_guest(*, jailed: bool) -> str:
    """Return where the guest finds it; MISSING if the host does not have it."""
    folder = _host_folder()
    if folder is None:
        return MISSING
    return GUEST_FOLDER if jailed else folder


@functools.cache
def _host_folder() -> str | None:
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or not spec.origin or not spec.submodule_search_locations:
        return None
    return str(Path(spec.origin).resolve().parent)

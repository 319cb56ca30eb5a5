"""cloudpickle for guests: the host's own copy, bound read-only beside the guest runtime.

It is pure Python, so a guest's interpreter of any version can use it without having it installed.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from atoll.errors import StateError
from atoll.jail.spec import GUEST_CODE, Bind

GUEST_FOLDER = f"{GUEST_CODE}/lib/cloudpickle"


def binds() -> list[Bind]:
    """What a jail has to be given."""
    folder = _host_folder()
    return [Bind(source=folder, target=GUEST_FOLDER)] if folder else []


def folder_in_guest(*, jailed: bool) -> str:
    """Where the guest finds it; StateError if the host has none to give."""
    folder = _host_folder()
    if folder is None:
        raise StateError("saving and restoring need cloudpickle: pip install 'atoll[state]'")
    return GUEST_FOLDER if jailed else folder


@functools.cache
def _host_folder() -> str | None:
    found = importlib.util.find_spec("cloudpickle")
    if found is None or not found.origin or not found.submodule_search_locations:
        return None
    return str(Path(found.origin).resolve().parent)

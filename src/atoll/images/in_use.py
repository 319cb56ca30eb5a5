"""Images that this process uses already: held once more without reading the store.

A warm start must neither wait for a thread nor read files. One look at the file that says what a
reference means is enough, if that was not changed since.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.images import store
from atoll.images.reference import LocalReference, parse

if TYPE_CHECKING:
    from atoll.images.image import HeldImage

MAX_KNOWN = 256
SETTLED_NS = 1_000_000_000
"""How old a file must be: a younger one may change again without another time of change."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The file that says what a reference means, as it was before it was read."""

    reference: str
    source: str
    stamp: tuple[int, ...] | None


_uses: OrderedDict[tuple[str, str | None], tuple[Meaning, HeldImage]] = OrderedDict()
"""By reference and store. The holds may be closed by now."""


def find(reference: str) -> HeldImage | None:
    """Return a hold on the image of a reference that this process uses; None if that is unsure."""
    meaning, held = _uses.get(_key(reference), (None, None))
    if meaning is None or held is None or _stamp(meaning.source) != meaning.stamp:
        return None
    return held.again_if_used()


def look(reference: str) -> Meaning:
    """Look at the file that says what a reference means; call it before that is read."""
    asked = parse(reference)
    if not isinstance(asked, LocalReference):
        source = str(store.name_file(str(asked)))
    else:
        source = f"{asked.path}/index.json" if asked.kind == "oci" else asked.path
    return Meaning(reference, source, _stamp(source))


def note(meaning: Meaning, held: HeldImage) -> None:
    """Remember the image that a reference meant."""
    stamp = meaning.stamp
    if stamp is not None and time.time_ns() - max(stamp[:2]) > SETTLED_NS:
        _uses[_key(meaning.reference)] = meaning, held
        while len(_uses) > MAX_KNOWN:
            _uses.popitem(last=False)


def _key(reference: str) -> tuple[str, str | None]:
    return reference, os.environ.get("ATOLL_CACHE")


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size

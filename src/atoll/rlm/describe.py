"""What a model is told of a context it does not see: the same few lines, however large it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.explore.index import ContextIndex
    from atoll.rlm.material import Material

SAMPLE = 300
MOST_SECTIONS = 12
LONGEST_TITLE = 80
SECTIONED = 1 << 24
"""Characters up to which a context's sections are looked for: they are read for it."""


def describe(index: ContextIndex | None, kind: str, documents: bool) -> str:  # noqa: FBT001
    """Kind, length, sections, the first characters and the last."""
    if index is None:
        return "There is no context; look at the documents: list_dir()."
    lines = [f"`context` is {kind} of {index.length:,} characters."]
    if titles := _titles(index):
        lines.append("Its sections begin: " + "; ".join(titles))
    lines += ["It begins:", _quoted(index.text(0, min(SAMPLE, index.length)))]
    if index.length > 2 * SAMPLE:
        lines += ["It ends:", _quoted(index.text(index.length - SAMPLE, index.length))]
    if documents:
        lines.append("There are documents as well: list_dir().")
    return "\n".join(lines)


def facts(index: ContextIndex | None, given: Material) -> dict[str, Any]:
    """The same as data, without any of the text."""
    kind = "files" if given.files else given.kind.rstrip(",")
    known = {"kind": kind, "length": 0 if index is None else index.length}
    counts = {"files": given.files, "skipped": given.skipped}
    return known | {name: number for name, number in counts.items() if number}


def _titles(index: ContextIndex) -> list[str]:
    if index.length > SECTIONED:
        return []
    return [section.title[:LONGEST_TITLE] for section in index.sections()[:MOST_SECTIONS]]


def _quoted(text: str) -> str:
    return "\n".join(f"| {line}" for line in text.splitlines())

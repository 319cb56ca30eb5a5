"""The attacks of the self-check, read from the text beside this file; selfcheck runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

PATIENCE_MS = 10_000
_HEADER = re.compile(r"^### ([\w-]+) \| ([\w ]+) \| (.+?)(?: \| (\d+) ms)?\n", re.MULTILINE)
_LATER = "### then, in another sandbox\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One way out, as code that calls `won` if it found it."""

    name: str
    category: str
    claim: str
    code: str
    then: str = ""
    """Code for another sandbox, after this one."""
    timeout_ms: int = PATIENCE_MS


def load() -> list[Attack]:
    """The attacks of the file beside this one."""
    text = resources.files("atoll.cli").joinpath("attacks.txt").read_text("utf-8")
    _, *parts = _HEADER.split(text)
    return [_attack(*parts[at : at + 5]) for at in range(0, len(parts), 5)]


def _attack(name: str, category: str, claim: str, limit: str | None, body: str) -> Attack:
    code, _, then = body.partition(_LATER)
    timeout = int(limit) if limit else PATIENCE_MS
    return Attack(
        name=name, category=category, claim=claim, code=code, then=then, timeout_ms=timeout
    )

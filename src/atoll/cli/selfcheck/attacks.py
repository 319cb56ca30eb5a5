"""Loads the attacks of the self-check from attacks.txt; selfcheck runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

PATIENCE_MS = 10_000
_HEADER = re.compile(r"^### ([\w-]+) \| ([\w ]+) \| (.+?)(?: \| (\d+) ms)?\n", re.MULTILINE)
_LATER = "### then, in another sandbox\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack: code that calls `won` if it succeeded."""

    name: str
    category: str
    claim: str
    code: str
    then: str = ""
    """Code to run in another sandbox afterwards."""
    timeout_ms: int = PATIENCE_MS


def load() -> list[Attack]:
    """Return the attacks in attacks.txt."""
    text = resources.files("atoll.cli.selfcheck").joinpath("attacks.txt").read_text("utf-8")
    _, *parts = _HEADER.split(text)
    return [_attack(*parts[at : at + 5]) for at in range(0, len(parts), 5)]


def _attack(name: str, category: str, claim: str, limit: str | None, body: str) -> Attack:
    code, _, then = body.partition(_LATER)
    timeout = int(limit) if limit else PATIENCE_MS
    return Attack(
        name=name, category=category, claim=claim, code=code, then=then, timeout_ms=timeout
    )

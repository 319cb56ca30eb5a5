"""The attack corpora as typed data: read by the harness, which runs them, and by the tests.

Standard library only: the harness also runs as an ordinary user, without any test tool.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ATTACKS = HERE / "attacks.jsonl"
EXTRA = HERE / "extra.jsonl"

LAYERS: dict[str, tuple[str, ...]] = {
    "native": ("native", "all"),
    "daemon": ("native", "all"),
    "wasm": ("wasm", "all"),
    "pyodide": ("pyodide", "all"),
    "restricted": ("restricted", "all"),
}
"""Which layers of a corpus concern a backend. A new backend needs a row here, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What follows the attack: `session` is same, other, fresh, restore or upload:<name>."""

    session: str
    code: str

    @property
    def kind(self) -> str:
        """The session's kind, without a file's name."""
        return self.session.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One entry; `passes` says in words what a good sandbox does."""

    id: str
    category: str
    layer: str
    code: str
    passes: str
    source: str = ""
    bites: str = ""
    then: tuple[Step, ...] = ()
    needs: tuple[str, ...] = ()
    timeout_s: float | None = None
    host_check: tuple[str, ...] = ()
    expect_kind: str | None = None
    expect_stdout: str | None = None
    compare: str | None = None
    arch: str | None = None
    runs_in: str | None = None


def load(file: Path = ATTACKS) -> tuple[Attack, ...]:
    """Every entry of a corpus file, in its order."""
    with file.open(encoding="utf-8") as lines:
        return tuple(_attack(json.loads(line)) for line in lines if line.strip())


def for_backend(backend: str, file: Path = ATTACKS) -> tuple[Attack, ...]:
    """The entries that concern a backend; KeyError for a backend that LAYERS does not name."""
    return tuple(attack for attack in load(file) if attack.layer in LAYERS[backend])


def _attack(row: dict[str, Any]) -> Attack:
    row["passes"] = row.pop("pass")
    row["then"] = tuple(Step(**step) for step in row.get("then", ()))
    for name in ("needs", "host_check"):
        row[name] = tuple(row.get(name, ()))
    return Attack(**row)

"""What became of the self-check's attacks, and how it is shown; selfcheck and doctor use it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from atoll.cli.attacks import Attack
    from atoll.cli.paint import Paint
    from atoll.policy import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of an attack."""

    name: str
    category: str
    claim: str
    held: bool
    note: str = ""


class Show:
    """Prints verdicts as they come, and on a terminal what is under way."""

    def __init__(self, stream: TextIO, paint: Paint, *, quiet: bool) -> None:
        self._stream, self._paint, self._quiet = stream, paint, quiet
        self._live = stream.isatty() and not quiet

    def heading(self, backend: str, isolation: Isolation, count: int) -> None:
        """What is attacked."""
        self._print(f"\n{count} attacks on {backend}, {isolation.name.lower()}")

    def begin(self, attack: Attack) -> None:
        """An attack is under way."""
        if self._live:
            self._stream.write(f"  ...          {attack.name}: {attack.claim}"[: _columns()])
            self._stream.flush()

    def end(self, verdict: Verdict) -> None:
        """An attack has been judged."""
        held = self._paint.good("held       ") if verdict.held else self._paint.bad("GOT THROUGH")
        note = f" ({verdict.note})" if verdict.note else ""
        start = "\r\x1b[K" if self._live else ""
        self._print(f"{start}  {held}  {verdict.category:<10} {verdict.claim}{note}")

    def total(self, verdicts: list[Verdict]) -> None:
        """How many were held."""
        held = sum(one.held for one in verdicts)
        text = f"{held} of {len(verdicts)} held"
        self._print(self._paint.good(text) if held == len(verdicts) else self._paint.bad(text))

    def _print(self, text: str) -> None:
        if not self._quiet:
            print(text, file=self._stream, flush=True)


def _columns() -> int:
    return shutil.get_terminal_size().columns - 1

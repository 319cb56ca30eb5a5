"""Results of the self-check's attacks, and how they are printed; selfcheck and doctor use it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from atoll.cli.selfcheck.attacks import Attack
    from atoll.cli.terminal.colours import Colours
    from atoll.policy import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """Whether an attack was held, and what it got if not."""

    name: str
    category: str
    claim: str
    held: bool
    note: str = ""


class AttackReport:
    """Prints each result as it arrives, and on a terminal the attack that is running."""

    def __init__(self, stream: TextIO, colours: Colours, *, quiet: bool) -> None:
        self._stream, self._colours, self._quiet = stream, colours, quiet
        self._live = stream.isatty() and not quiet

    def heading(self, backend: str, isolation: Isolation, count: int) -> None:
        """Print which backend is attacked."""
        self._print(f"\n{count} attacks on {backend}, {isolation}")

    def begin(self, attack: Attack) -> None:
        """Show that an attack is running."""
        if self._live:
            self._stream.write(f"  ...          {attack.name}: {attack.claim}"[: _columns()])
            self._stream.flush()

    def end(self, result: AttackResult) -> None:
        """Print the result of an attack."""
        held = (
            self._colours.good("held       ") if result.held else self._colours.bad("GOT THROUGH")
        )
        note = f" ({result.note})" if result.note else ""
        start = "\r\x1b[K" if self._live else ""
        self._print(f"{start}  {held}  {result.category:<10} {result.claim}{note}")

    def total(self, results: list[AttackResult]) -> None:
        """Print how many attacks were held."""
        held = sum(one.held for one in results)
        text = f"{held} of {len(results)} held"
        self._print(self._colours.good(text) if held == len(results) else self._colours.bad(text))

    def _print(self, text: str) -> None:
        if not self._quiet:
            print(text, file=self._stream, flush=True)


def _columns() -> int:
    return shutil.get_terminal_size().columns - 1

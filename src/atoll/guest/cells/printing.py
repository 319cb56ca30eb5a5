"""print and `printed` for code under RestrictedPython's rules: what a cell has printed, as a text.

In a cell that reads `printed`, the guard writes `atoll_print` for `print` and `atoll_printed()` for
`printed`. The text is on standard output too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 1 << 20
"""Characters that are kept of a cell; of more, the latest."""


class PrintCollector:
    """Keeps what the running cell prints."""

    NAMES = ("atoll_print", "atoll_printed")

    def __init__(self) -> None:
        self._cell, self._text = "", ""

    def atoll_print(self, *values: Any, **options: Any) -> None:
        """Print, and keep the text if it goes to standard output."""
        print(*values, **options)  # noqa: T201 - it is guest code's
        if options.get("file") is None:
            self._begin(sys._getframe(1))  # noqa: SLF001
            said = str(options.get("sep") if options.get("sep") is not None else " ")
            end = "\n" if options.get("end") is None else str(options["end"])
            self._text = (self._text + said.join(map(str, values)) + end)[-MOST:]

    def atoll_printed(self) -> str:
        """Return what the cell has printed so far."""
        self._begin(sys._getframe(1))  # noqa: SLF001
        return self._text

    def _begin(self, caller: Any) -> None:
        """Forget the text of another cell."""
        cell = caller.f_code.co_filename
        if cell != self._cell:
            self._cell, self._text = cell, ""

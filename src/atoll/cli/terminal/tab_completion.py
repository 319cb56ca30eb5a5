"""Tab in `atoll repl`: completes names and attributes that exist in the guest.

SECURITY: the guest answers with text. It is capped, and only lines that look like names are used.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
from typing import TYPE_CHECKING, Any

from atoll.errors import AtollError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from atoll.cli.terminal.streams import GuestOutput
    from atoll.sandbox.base import BaseSandbox

DELIMITERS = " \t\n`~@#$^&*()-=+[{]}\\|;:'\",<>/?"
"""What ends a word: not the dot of an attribute, not the % and ! of a command."""
TIMEOUT_MS = 5_000
MAX_NAMES, MAX_NAME = 200, 200
MAX_ANSWER = 64_000
INDENT = "    "
_WORD = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\.?\Z")


class Completer:
    """Answers readline: `complete` is called with a word and 0, 1, 2 ... until it returns None."""

    def __init__(
        self,
        runner: asyncio.Runner,
        box: BaseSandbox,
        output: GuestOutput,
        commands: Sequence[str],
    ) -> None:
        self._runner, self._box, self._output = runner, box, output
        self._commands = commands
        self._matches: list[str] = []

    def complete(self, word: str, number: int) -> str | None:
        """Return the match with that number; None after the last."""
        if number == 0:
            self._matches = self.matches(word)
        return self._matches[number] if number < len(self._matches) else None

    def matches(self, word: str) -> list[str]:
        """Return what the word can become: a command, a keyword, a name, an attribute."""
        if word.startswith("%"):
            return [one for one in self._commands if one.startswith(word)]
        if not _WORD.match(word):
            return [] if word else [INDENT]
        own = () if "." in word else (*keyword.kwlist, *dir(builtins))
        hidden = word.rpartition(".")[2].startswith("_")
        near = {one for one in own if one.startswith(word) and (hidden or one[0] != "_")}
        return sorted({*near, *self._in_guest(word)})[:MAX_NAMES]

    def _in_guest(self, word: str) -> list[str]:
        """Return names in the guest; nothing if it does not answer in time or refuses the cell."""
        self._output.muted = True
        try:
            result = self._runner.run(self._box.execute(_cell(word), timeout_ms=TIMEOUT_MS))
        except AtollError:
            return []
        finally:
            self._output.muted = False
        owner, dot, _ = word.rpartition(".")
        lines = result.stdout[:MAX_ANSWER].splitlines()[:MAX_NAMES]
        names = [line for line in lines if line.isidentifier() and len(line) <= MAX_NAME]
        found = [f"{owner}{dot}{name}" for name in names]
        return [one for one in found if one.startswith(word)]


def _cell(word: str) -> str:
    """Return the code to run in the guest; it leaves no name behind."""
    name = _atoll_names.__name__
    call = f"try: {name}({word!r}, {MAX_NAMES})\nfinally: del {name}"
    lines = ("from __future__ import annotations", inspect.getsource(_atoll_names), call)
    return "\n".join(lines)


def _atoll_names(word: str, most: int) -> None:
    """Print the names that complete `word`. This runs in the guest, on Python 3.8 and newer.

    Attributes are looked up in the dictionaries of objects and classes: no property, __getattr__
    or __dir__ of the guest's is called.
    """
    import builtins  # noqa: PLC0415 - the guest has only the source of this function
    import sys  # noqa: PLC0415

    def spaces(owner: Any) -> Any:
        kind = type(owner)
        if issubclass(kind, type):
            return [type.__getattribute__(one, "__dict__") for one in type.mro(owner)]
        try:
            own = [object.__getattribute__(owner, "__dict__")]
        except AttributeError:
            own = []
        return own + [type.__getattribute__(one, "__dict__") for one in type.mro(kind)]

    def find(name: str, where: Any) -> Any:
        for space in where:
            if name in space:
                return [] if hasattr(type(space[name]), "__get__") else spaces(space[name])
        return []

    path = word.split(".")
    where: Any = [sys.modules["__main__"].__dict__, vars(builtins)]
    for name in path[:-1]:
        where = find(name, where)
    start = path[-1]
    names = {one for space in where for one in space if isinstance(one, str)}
    shown = [n for n in names if n.startswith(start) and (start[:1] == "_" or n[:1] != "_")]
    sys.stdout.write("\n".join(sorted(shown)[:most]) + "\n")

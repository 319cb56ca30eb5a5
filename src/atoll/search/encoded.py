"""A context as searchable bytes, and the conversion between byte and character offsets.

ASCII and latin-1 are searched in place, one byte for each character. Wider text is encoded as UTF-8
once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from atoll.guest.core.context import CODECS
from atoll.search.memory import Memory

if TYPE_CHECKING:
    from atoll.sandbox.context import Context

STEP = 1 << 14
"""Characters between two recorded offsets."""
_CONTINUING = bytes(range(0x80, 0xC0))
_LARGEST = {1: 2, 2: 3, 4: 4}
"""Most bytes in UTF-8 of a character, by the width in which the context stores it."""


class Characters:
    """The characters of a context, in the width in which the context stores them."""

    def __init__(self, context: Context) -> None:
        self.length, self.width = context.length, context.width
        self.ascii = bool(context.describe()["ascii"])
        resident = None if context.describe()["json"] else context.resident
        self._kept = resident and context.value  # the mapping lives as long as the context
        self.memory = (
            Memory.of_file(context.fd, self.length * self.width)
            if resident is None
            else Memory(resident, self.length)
        )

    def text(self, start: int, end: int) -> str:
        """Return `context[start:end]`, for 0 <= start."""
        data = self.memory.part(start * self.width, end * self.width)
        text = data.decode(CODECS[self.width], "strict" if self.width == 1 else "surrogatepass")
        if len(text) * self.width == len(data):
            return text
        # The decoder joined surrogates that stand side by side; in the context they are two.
        return "".join(map(chr, memoryview(data).cast("H")))


class Narrow:
    """ASCII or latin-1 text: offsets in bytes and characters are the same."""

    def __init__(self, characters: Characters) -> None:
        self.memory, self.utf8 = characters.memory, characters.ascii

    def encode(self, text: str) -> bytes | None:
        """Return the text in this encoding; None if it cannot be encoded."""
        try:
            return text.encode("ascii" if self.utf8 else "latin-1")
        except UnicodeEncodeError:
            return None

    def to_character(self, byte: int) -> int:
        """Return the offset of the character that this byte belongs to."""
        return byte

    def to_byte(self, character: int) -> int:
        """Return the first byte of this character."""
        return character


class Wide:
    """Text of any width as UTF-8, with the byte offset of every STEP-th character recorded."""

    utf8 = True

    def __init__(self, characters: Characters) -> None:
        self._characters = characters
        self._starts = array("Q", [0])
        self.memory = self._fill(Memory.room(characters.length * _LARGEST[characters.width]))

    def _fill(self, room: object) -> Memory:
        view, at = memoryview(room), 0  # type: ignore[arg-type]
        for start in range(0, self._characters.length, STEP):
            data = _utf8(self._characters.text(start, start + STEP))
            view[at : at + len(data)] = data
            at += len(data)
            self._starts.append(at)
        view.release()
        return Memory(room, at)

    def encode(self, text: str) -> bytes | None:
        """Return the text in this encoding."""
        return _utf8(text)

    def to_character(self, byte: int) -> int:
        """Return the offset of the character that this byte belongs to."""
        step = bisect_right(self._starts, byte) - 1
        before = self.memory.part(self._starts[step], byte)
        character = step * STEP + len(before.translate(None, _CONTINUING))
        return min(character, self._characters.length)  # the last step may be a short one

    def to_byte(self, character: int) -> int:
        """Return the first byte of this character."""
        step = character // STEP
        before = self._characters.text(step * STEP, character)
        return self._starts[step] + len(_utf8(before))


Encoded = Narrow | Wide


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

"""Commands of cells: their output is read to the end."""

from __future__ import annotations

import os

from atoll.guest.cells import programs


class _LastWords:
    """A command that prints and ends just after its cell looked; another process has its pipe."""

    def __init__(self) -> None:
        self.kept = -1

    def start(self, _params: object, _folder: str, streams: tuple[int, int]) -> None:
        self.kept = os.dup(streams[0])

    def has_ended(self) -> bool:
        os.write(self.kept, b"last words\n")
        self.has_ended = lambda: True
        return True

    def wait(self) -> int:
        os.close(self.kept)
        return 0

    def end(self) -> None:
        raise AssertionError("it ends by itself")

    def forget(self) -> None:
        """Nothing is kept of it."""


def test_what_a_command_prints_as_it_ends_is_not_lost(monkeypatch):
    monkeypatch.setattr(programs.shell, "Command", _LastWords)
    monkeypatch.setattr(programs, "PATIENCE_MS", 1)
    printed: list[str] = []
    assert programs.run("anything", printed.append) == 0
    assert "".join(printed) == "last words\n"

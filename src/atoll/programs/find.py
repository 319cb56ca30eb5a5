"""Finds a program as a shell in its jail would; says what to type if it is not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.programs.rules import ProgramRules

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes of a shell for a program that cannot be executed, and for one that is missing."""


class NoProgramError(ConfigError):
    """A program that cannot be started."""

    def __init__(self, text: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(text)


def find_program(argv: Sequence[str], rules: ProgramRules) -> str:
    """Return the program's path in its jail; NoProgramError if it cannot be started there."""
    if not argv:
        raise ConfigError("name a program: atoll exec CMD ...")
    name = argv[0]
    if rules.image is not None:  # pid 1 looks for it, in the image
        return name
    folders = rules.environment(os.environ).get("PATH", os.defpath).split(os.pathsep)
    places = [rules.folder / name] if "/" in name else [Path(at, name) for at in folders if at]
    # Not Path.is_file: that raises for a folder of another user.
    present = [place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)]
    for place in present:  # a shell in the jail does not see all folders of PATH
        if rules.shown(place) and rules.shown(place.resolve()):
            return str(place)
    if not present:
        _fail(name, [place for place in places if os.path.exists(place)])
    hidden = present[0] if not rules.shown(present[0]) else present[0].resolve()
    folder = hidden.parent.parent if hidden.parent.name == "bin" else hidden.parent
    raise NoProgramError(
        f"{name} is {hidden}, which the program's jail does not show: add --read {folder}",
        NOT_EXECUTABLE,
    )


def _fail(name: str, found: Sequence[Path]) -> None:
    if not found:
        raise NoProgramError(f"{name}: no such program", NOT_FOUND)
    what = "a folder" if found[0].is_dir() else f"not executable: chmod +x {found[0]}"
    raise NoProgramError(f"{name} is {what}", NOT_EXECUTABLE)

"""What to type to install an extra: for errors, hints and `atoll doctor`.

No index has atoll, so `pip install 'atoll[search]'` cannot work. The command names the packages
themselves: that works whether Atoll was installed from a folder, a wheel or an index, or runs from
its source tree.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import sys
from pathlib import Path

NAME = "atoll"
_TREE = Path(__file__).resolve().parents[2]
_OF_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_OWN = re.compile(rf"{NAME}\s*\[([^\]]*)\]")


def install_command(*extras: str) -> str:
    """Return the shell command that installs the packages of extras for this interpreter."""
    wanted = [requirements(extra) or (f"{NAME}[{extra}]",) for extra in extras]
    return pip_command(*dict.fromkeys(package for some in wanted for package in some))


def pip_command(*packages: str) -> str:
    """Return the shell command that installs packages for this interpreter, which may lack pip."""
    python = sys.executable or "python3"
    command = shlex.join([python, "-m", "pip", "install", *packages])
    if importlib.util.find_spec("pip") is not None:
        return command
    if importlib.util.find_spec("ensurepip") is not None:  # an environment that was made without
        return f"{shlex.join([python, '-m', 'ensurepip'])} && {command}"
    return shlex.join(["uv", "pip", "install", "--python", python, *packages])


def hint(extra: str) -> str:
    """Return the command as a sentence, for the hint of an error."""
    return f"Type: {install_command(extra)}"


def requirements(extra: str) -> tuple[str, ...]:
    """Return the packages of an extra, as pip takes them; none if the extra is not known."""
    unique: dict[str, None] = {}
    for text in _table().get(extra, ()):
        own = _OWN.match(text)
        parts = [part.strip() for part in own[1].split(",")] if own else []
        unique |= dict.fromkeys(requirement for part in parts for requirement in requirements(part))
        if own is None:
            unique[text] = None
    return tuple(unique)


@functools.cache
def _table() -> dict[str, list[str]]:
    """Return every extra with its packages: of the source tree, else of the installed package."""
    import tomllib  # noqa: PLC0415 - only a hint needs it

    try:
        project = tomllib.loads((_TREE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["name"] == NAME:
            return dict(project["optional-dependencies"])
    except (OSError, KeyError, ValueError):
        pass
    return _installed_table()


def _installed_table() -> dict[str, list[str]]:
    from importlib import metadata  # noqa: PLC0415 - it takes 20 ms to import

    try:
        lines = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return {}
    table: dict[str, list[str]] = {}
    for line in lines:
        package, _, condition = line.partition(";")
        for extra in _OF_EXTRA.findall(condition):
            table.setdefault(extra, []).append(package.strip())
    return table

"""Turns rules into binds of a jail: what is shown, what is writable, and what lies over it.

A denied path is covered by a mount. SECURITY: a mount point cannot be renamed or removed in the
jail, but a folder above it can. So each folder between a writable one and a covered path is bound
to itself, and becomes a mount point too. A path that does not exist yet is created empty before
the program starts, to be covered, and removed afterwards if it is still empty.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.jail.supervisor.spec import Bind
from atoll.programs.rules import Access, PathRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.programs.rules import ProgramRules


@contextlib.contextmanager
def binds_for(rules: ProgramRules) -> Iterator[tuple[Bind, ...]]:
    """Return the binds of the rules; remove what they needed at the end."""
    with contextlib.ExitStack() as stack:
        covers = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atoll-exec-")))
        binds: dict[str, Bind] = {}
        for rule in sorted(rules.paths, key=PathRule.rank):
            if rule.access in (Access.READ, Access.WRITE):
                writable = rule.access is Access.WRITE
                binds[str(rule.path)] = _bind(rule.path, writable=writable, owned=rule.owned)
                continue
            if not _needed(rules, rule):
                continue
            if not rule.path.exists():
                stack.enter_context(_placeholder(rule.path))
            for folder in _between(rules, rule.path):
                binds.setdefault(str(folder), _bind(folder, writable=True))
            if rule.access is Access.DENY_WRITE:
                binds[str(rule.path)] = _bind(rule.path)
            else:
                cover = _cover(covers / str(len(binds)), rule, rules)
                stack.callback(_open_up, cover)
                binds[str(rule.path)] = Bind(source=str(cover), target=str(rule.path))
        yield tuple(binds.values())


def _bind(path: Path, *, writable: bool = False, owned: bool = True) -> Bind:
    return Bind(source=str(path), target=str(path), writable=writable, owned=owned)


def _needed(rules: ProgramRules, rule: PathRule) -> bool:
    """Return whether a path could be seen, or written to, without a rule that forbids it."""
    if rule.access is Access.DENY_WRITE:
        return _writable_above(rules, rule.path) is not None
    parent = rules.rule_of(rule.path.parent)
    named = any(
        other.path == rule.path for other in rules.paths if other.access is not Access.DENY_READ
    )
    return named or parent is not None or rules.shown(rule.path.parent)


def _writable_above(rules: ProgramRules, path: Path) -> Path | None:
    """Return the innermost writable folder that a path is in, or is."""
    above = [
        rule.path
        for rule in rules.paths
        if rule.access is Access.WRITE and path.is_relative_to(rule.path)
    ]
    return max(above, key=lambda found: len(found.parts), default=None)


def _between(rules: ProgramRules, path: Path) -> list[Path]:
    """Return the folders below the writable one on the way to a path, outermost first."""
    top = _writable_above(rules, path)
    if top is None or top == path:
        return []
    return [parent for parent in reversed(path.parents) if parent != top and top in parent.parents]


@contextlib.contextmanager
def _placeholder(path: Path) -> Iterator[None]:
    """Create an empty file, and the folders above it that are missing; remove them afterwards."""
    missing = [parent for parent in reversed(path.parents) if not parent.exists()]
    made: list[Path] = []
    try:
        for folder in missing:
            folder.mkdir()
            made.append(folder)
        path.touch(exist_ok=False)
        made.append(path)
        yield
    except OSError as exc:
        raise ConfigError(f"cannot deny {path}, which does not exist yet: {exc.strerror}") from exc
    finally:
        for item in reversed(made):
            with contextlib.suppress(OSError):
                if item is not path:
                    item.rmdir()
                elif item.stat().st_size == 0:
                    item.unlink()


def _cover(cover: Path, rule: PathRule, rules: ProgramRules) -> Path:
    """Make what hides a path: without rights, but with a way to what is shown below it."""
    if not rule.path.is_dir():
        cover.touch(mode=0)
        return cover
    cover.mkdir()
    ways = {cover}
    for other in rules.paths:
        if other.access in (Access.READ, Access.WRITE) and rule.path in other.path.parents:
            inner = cover / other.path.relative_to(rule.path)
            if other.path.is_dir():
                inner.mkdir(parents=True, exist_ok=True)
            else:
                inner.parent.mkdir(parents=True, exist_ok=True)
                inner.touch()
            ways |= {parent for parent in inner.parents if cover in (parent, *parent.parents)}
    for way in ways:
        way.chmod(0o111 if len(ways) > 1 or any(way.iterdir()) else 0)
    return cover


def _open_up(cover: Path) -> None:
    """Give a cover its rights back, so that it can be removed."""
    if cover.is_dir():
        cover.chmod(0o700)
        for inner in cover.iterdir():
            _open_up(inner)

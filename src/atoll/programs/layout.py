"""Turns rules into binds of a jail: what is shown, what is writable, and what lies over it.

A denied path is covered by a mount. SECURITY: a mount point cannot be renamed or removed in the
jail, but a folder above it can, or a link that leads to it. So each folder between a writable one
and a covered path is bound to itself, and each link, and becomes a mount point too.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import Bind
from atoll.programs.placeholder import Placeholders
from atoll.programs.rules import SHOWING, Access, PathRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.programs.rules import ProgramRules


@contextlib.contextmanager
def binds_for(rules: ProgramRules) -> Iterator[tuple[Bind, ...]]:
    """Return the binds of the rules; remove what they needed at the end."""
    with contextlib.ExitStack() as stack:
        layout = _Layout(rules, stack)
        for rule in sorted(rules.paths, key=PathRule.rank):
            layout.add(rule)
        yield tuple(layout.binds.values())


class _Layout:
    """The binds of some rules, as they are added from the shortest path to the longest."""

    def __init__(self, rules: ProgramRules, stack: contextlib.ExitStack) -> None:
        self._rules, self._stack = rules, stack
        self._covers: Path | None = None
        self._placeholders = stack.enter_context(contextlib.closing(Placeholders()))
        self.binds: dict[str, Bind] = {}

    def add(self, rule: PathRule) -> None:
        if rule.access in SHOWING:
            self._bind(rule.path, writable=rule.access is Access.WRITE, owned=rule.owned)
            return
        for link in rule.links:
            self._pin(link)
        if rule.access is Access.DENY_WRITE:
            self._deny_write(rule, self._rules.mount_of(rule.path))
        elif self._names(rule.path) or self._rules.shown(rule.path.parent):
            self._deny_read(rule, self._rules.mount_of(rule.path.parent))

    def _deny_write(self, rule: PathRule, above: PathRule | None) -> None:
        if above is None or above.access is not Access.WRITE:
            return  # it cannot be written to, or not even be seen
        new = self._placeholders.make(above.path, rule.path)
        self._pin_ways(above.path, rule.path)
        source = Path(os.devnull) if new else None
        self._bind(rule.path, source=source)

    def _deny_read(self, rule: PathRule, above: PathRule | None) -> None:
        if above is not None and above.access is Access.WRITE:
            self._placeholders.make(above.path, rule.path)
            self._pin_ways(above.path, rule.path)
        elif not rule.path.exists():
            return
        self._bind(rule.path, source=self._cover(rule.path, rule.content))

    def _bind(
        self, path: Path, *, source: Path | None = None, writable: bool = False, owned: bool = True
    ) -> None:
        shown = source or path
        self.binds[str(path)] = Bind(
            source=str(shown),
            target=str(path),
            writable=writable,
            owned=owned and source is None,
            exact=shown != Path(os.devnull),
        )

    def _pin(self, link: Path) -> None:
        """Bind a link to itself, so that it cannot be replaced in a writable folder."""
        above = self._rules.mount_of(link.parent)
        if above is not None and above.access is Access.WRITE:
            self._pin_ways(above.path, link)
            self._bind(link, owned=False)

    def _pin_ways(self, top: Path, path: Path) -> None:
        """Bind the folders between a writable one and a path to themselves."""
        for folder in reversed(path.parents):
            if top in folder.parents and str(folder) not in self.binds:
                self._bind(folder, writable=True)

    def _names(self, path: Path) -> bool:
        """Return whether a rule shows this very path."""
        return any(rule.path == path and rule.access in SHOWING for rule in self._rules.paths)

    def _cover(self, path: Path, content: bytes | None) -> Path:
        """Make what hides a path: without rights, but with a way to what is shown below it."""
        if self._covers is None:
            made = tempfile.TemporaryDirectory(prefix="atoll-exec-")
            self._covers = Path(os.path.realpath(self._stack.enter_context(made)))
        cover = self._covers / str(len(self.binds))
        if content is not None:
            cover.write_bytes(content)
            cover.chmod(0o444)
            return cover
        if not path.is_dir():
            cover.touch(mode=0)
            return cover
        cover.mkdir()
        self._stack.callback(_open_up, cover)
        ways = {cover}
        for rule in self._rules.paths:
            if rule.access in SHOWING and path in rule.path.parents:
                inner = cover / rule.path.relative_to(path)
                if rule.path.is_dir():
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

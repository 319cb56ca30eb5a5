"""Credentials that a program may use and never see: it gets a placeholder, the proxy the value.

SECURITY: the proxy puts the value into requests to the hosts of this credential only, over https
whose server it has checked. A text that was to be masked and does not match is denied, not shown.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from atoll.egress.masks import Mask
from atoll.errors import ConfigError
from atoll.network import HostRule
from atoll.programs.rules import Access, PathRule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from atoll.programs.table import Table

MAX_FILE = 1 << 20
SHORTEST = 40
"""Characters of a placeholder, at least: none is guessed, or occurs by chance."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KEYS = ("mode", "extract", "onExtractNoMatch", "decode", "maskClaims", "injectHosts")
_NO_MEANS = {
    "decode": "a token is masked as a whole",
    "maskClaims": "a token is masked as a whole",
    "awsPairs": "requests are not signed anew",
    "sigv4": "requests are not signed anew",
}


@dataclass(slots=True)
class Credentials:
    """What a program gets in place of credentials."""

    paths: list[PathRule] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    masks: list[Mask] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)


def read(
    given: Table, folder: Path, allowed: Sequence[str], environ: Mapping[str, str]
) -> Credentials:
    """Return the credentials of sandbox-runtime's settings."""
    given.check("files", "envVars", "allowPlaintextInject", "awsPairs", "sigv4").refuse(_NO_MEANS)
    reader = _Reader(allowed, plain=given.flag("allowPlaintextInject"))
    for entry in given.tables("envVars"):
        name = entry.check("name", *_KEYS).text("name") or ""
        if not _NAME.match(name):
            raise ConfigError(f"{entry.path}: {entry.name}.name is not a variable: {name!r:.80}")
        masked = reader.mask(entry, environ.get(name))
        if masked is not None:
            reader.made.env[name] = masked
    for entry in given.tables("files"):
        path = entry.check("path", "maskDuplicates", *_KEYS).text("path") or ""
        reader.file(entry, PathRule.of(path, Access.DENY_READ, "a credential", folder))
    return reader.made


class _Reader:
    def __init__(self, allowed: Sequence[str], *, plain: bool) -> None:
        self._allowed, self._plain = tuple(allowed), plain
        self.made = Credentials()

    def file(self, entry: Table, rule: PathRule) -> None:
        text = None
        if entry.text("mode") == "mask" and rule.path.exists():
            if not rule.path.is_file() or rule.path.stat().st_size > MAX_FILE:
                raise ConfigError(f"{entry.path}: {entry.name}: {rule.path} is not a small file")
            text = rule.path.read_text("utf-8", "surrogateescape")
        masked = self.mask(entry, text)
        data = None if masked is None else masked.encode("utf-8", "surrogateescape")
        self.made.paths.append(replace(rule, content=data))

    def mask(self, entry: Table, text: str | None) -> str | None:
        """Return what a program gets in place of a text; None if it gets nothing."""
        entry.refuse(_NO_MEANS)
        mode = entry.text("mode", "deny", "mask")
        if mode is None:
            raise ConfigError(f"{entry.path}: {entry.name}.mode is missing: deny or mask")
        hosts, pattern = self._hosts(entry), self._pattern(entry)
        if mode == "deny" or text is None:
            return None
        bare = text.rstrip("\n")
        values = [bare] if pattern is None else [found[1] for found in pattern.finditer(text)]
        values = [value for value in dict.fromkeys(values) if value]
        if not values:
            return self._unmatched(entry, text)
        for value in values:
            placeholder = _placeholder(value)
            if pattern is None or entry.flag("maskDuplicates"):
                text = text.replace(value, placeholder)
            else:
                text = pattern.sub(_swap(value, placeholder), text)
            self.made.masks.append(
                Mask(placeholder=placeholder, value=value, hosts=hosts, plain=self._plain)
            )
        return text

    def _unmatched(self, entry: Table, text: str) -> str | None:
        action = entry.text("onExtractNoMatch", "warn", "deny", "error")
        what = f"{entry.name}: nothing matches {entry.text('extract')!r:.80}"
        if action == "error":
            raise ConfigError(f"{entry.path}: {what}")
        shown = action == "warn"
        self.made.hints.append(f"{what}: it is {'shown' if shown else 'denied'}")
        return text if shown else None

    def _pattern(self, entry: Table) -> re.Pattern[str] | None:
        text = entry.text("extract")
        try:
            pattern = None if text is None else re.compile(text)
        except (re.error, RecursionError) as exc:
            raise ConfigError(f"{entry.path}: {entry.name}.extract: {exc}") from None
        if pattern is not None and not pattern.groups:
            raise ConfigError(f"{entry.path}: {entry.name}.extract has no group for the value")
        return pattern

    def _hosts(self, entry: Table) -> tuple[str, ...]:
        if "injectHosts" not in entry.given:
            return self._allowed
        hosts = tuple(entry.texts("injectHosts"))
        for host in hosts:
            if not any(
                HostRule.parse(rule).names(host.removeprefix("*.")) for rule in self._allowed
            ):
                why = f"{host!r:.80} is not one of network.allowedDomains"
                raise ConfigError(f"{entry.path}: {entry.name}.injectHosts: {why}")
        if not hosts:
            raise ConfigError(f"{entry.path}: {entry.name}.injectHosts is empty: leave it out")
        return hosts


def _swap(value: str, placeholder: str) -> Callable[[re.Match[str]], str]:
    def swap(found: re.Match[str]) -> str:
        if found[1] != value:
            return found[0]
        start, end = found.start(1) - found.start(), found.end(1) - found.start()
        return found[0][:start] + placeholder + found[0][end:]

    return swap


def _placeholder(value: str) -> str:
    """Return a random text as long as the value, so that the length of a request stays."""
    text = f"masked_{secrets.token_hex(max(SHORTEST, len(value)))}"
    return text[: max(SHORTEST, len(value))]

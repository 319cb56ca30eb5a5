"""What a program may read, write and reach, and why: each rule says where it comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.jail.supervisor.spec import GUEST_HOME, SHOWN_FOLDERS
from atoll.jail.walls.root import SYSTEM_PATHS
from atoll.network import NetworkPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROTECTED = (
    ".git/hooks",
    ".git/config",
    ".gitmodules",
    ".bashrc",
    ".bash_profile",
    ".profile",
    ".zshrc",
    ".zprofile",
    ".mcp.json",
    ".vscode",
    ".idea",
    ".claude/commands",
    ".claude/agents",
    ".atoll.toml",
)
"""Files of a project that other programs run or obey: they stay read-only in a writable folder."""
CERTIFICATES = ("/etc/ssl/certs", "/etc/ca-certificates.conf", "/etc/pki/tls/certs")
_PASSED = ("PATH", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "NO_COLOR", "FORCE_COLOR", "CI")
_NEVER_WRITABLE = ("/", "/proc", "/dev", "/sys", *SHOWN_FOLDERS, *SYSTEM_PATHS)


class Access(StrEnum):
    """What a rule says about a path."""

    READ = "read"
    WRITE = "write"
    DENY_READ = "hidden"
    DENY_WRITE = "read-only"


@dataclass(frozen=True, slots=True)
class PathRule:
    """One path, links resolved, and what a program may do there."""

    path: Path
    access: Access
    reason: str
    """Where the rule comes from, such as `--write` or `.atoll.toml`."""
    owned: bool = True
    """Whether a program that root starts reads what only root may: not where nobody named it."""

    @classmethod
    def of(
        cls, text: str | Path, access: Access, reason: str, base: Path | None = None
    ) -> PathRule:
        """Return the rule for a path as written: relative to `base`, or with a `~`."""
        if "\0" in str(text) or not str(text):
            raise ConfigError(f"{reason}: not a path: {str(text)!r:.200}")
        path = (base or Path.cwd()) / Path(text).expanduser()
        real = Path(os.path.realpath(path))
        if access is Access.WRITE and str(real) in _NEVER_WRITABLE:
            raise ConfigError(f"{reason}: {real} cannot be writable: name a folder of your own")
        if access in (Access.READ, Access.WRITE) and not os.path.exists(real):
            raise ConfigError(f"{reason}: {path} does not exist, or you may not see it")
        return cls(real, access, reason)

    def rank(self) -> tuple[int, int]:
        """Order rules: a longer path decides; of two for one path, the one that forbids more."""
        return len(self.path.parts), list(Access).index(self.access)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRules:
    """All that a program may do."""

    folder: Path
    """Where it starts."""
    paths: tuple[PathRule, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    deny_hosts: tuple[str, ...] = ()
    image: str | None = None
    """A container image whose files it sees in place of this machine's system."""
    env: Mapping[str, str] = field(default_factory=dict)
    memory: int | None = None
    processes: int | None = 4096
    disk: int | None = 2 << 30
    """Size of the private folders (/tmp, the home folder) together."""

    @classmethod
    def for_folder(cls, folder: str | Path = ".", *, write: bool = True) -> ProgramRules:
        """Return the rules for a program that works on a folder, its current one by default."""
        path = Path(os.path.realpath(folder))
        if not path.is_dir():
            raise ConfigError(f"{folder} is not a folder")
        if write and path == Path(os.path.realpath(Path.home())):
            raise ConfigError(
                f"{path} is your home folder, and all of it would be writable: go to a folder of "
                f"your project, or use --read-only and name folders with --write"
            )
        access = Access.WRITE if write else Access.READ
        rules = [PathRule.of(path, access, "the current folder")]
        rules += [
            PathRule(path / name, Access.DENY_WRITE, "other programs run it or obey it")
            for name in PROTECTED
            if write and (path / name).exists() and not (path / name).is_symlink()
        ]
        rules += [
            PathRule(Path(name), Access.READ, "certificates of this machine", owned=False)
            for name in CERTIFICATES
            if os.path.exists(name)
        ]
        return cls(folder=path, paths=tuple(rules))

    @property
    def network(self) -> NetworkPolicy | None:
        """What it may reach; None without an allowed host."""
        return NetworkPolicy(self.allow_hosts, deny=self.deny_hosts) if self.allow_hosts else None

    def shown(self, path: Path) -> bool:
        """Return whether a program sees a path of this machine."""
        return self.rule_of(path) is not None or any(
            path.is_relative_to(system) for system in SYSTEM_PATHS
        )

    def rule_of(self, path: Path) -> PathRule | None:
        """Return the rule that decides about a path: the longest that it is below."""
        covering = [rule for rule in self.paths if path.is_relative_to(rule.path)]
        best = max(covering, key=PathRule.rank, default=None)
        return None if best is None or best.access is Access.DENY_READ else best

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the program's variables: harmless ones of `own`, then those of the rules."""
        passed = {
            name: value for name, value in own.items() if name in _PASSED or name.startswith("LC_")
        }
        at_home = {"HOME": GUEST_HOME, "USER": "guest", "LOGNAME": "guest", "SHELL": "/bin/sh"}
        return {**passed, **at_home, "PWD": str(self.folder), **self.env}

    def explain(self) -> str:
        """Return what the program may do, a line each, with the reason."""
        rows: list[tuple[str, str, str]] = [
            (rule.access, str(rule.path), rule.reason)
            for rule in sorted(self.paths, key=lambda rule: (str(rule.path), rule.access))
        ]
        system = "/usr, /bin, /lib and other programs" if self.image is None else "all files"
        origin = "this machine's" if self.image is None else f"of the image {self.image}"
        rows.insert(0, ("read", system, origin))
        rows.append(("write", ", ".join(SHOWN_FOLDERS), "private, gone afterwards"))
        rows.append(("hidden", "everything else, your home folder included", "always"))
        rows += [("reach", host, "allowed by http and https") for host in self.allow_hosts]
        rows += [("not reach", host, "denied by name") for host in self.deny_hosts]
        rest = "every other host" if self.allow_hosts else "the network"
        rows.append(("not reach", rest, "always"))
        wide = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]]
        return "".join(
            f"{access:<{wide[0]}}  {what:<{wide[1]}}  {reason}\n" for access, what, reason in rows
        )


def created(folder: Path, before: Iterable[str]) -> tuple[str, ...]:
    """Return which of the PROTECTED files exist now and did not before."""
    known = set(before)
    return tuple(name for name in protected_in(folder) if name not in known)


def protected_in(folder: Path) -> tuple[str, ...]:
    """Return which of the PROTECTED files are in a folder."""
    return tuple(name for name in PROTECTED if os.path.lexists(folder / name))

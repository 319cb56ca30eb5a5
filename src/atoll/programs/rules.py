"""What a program may read, write and reach, and why: each rule says where it comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.jail.supervisor.spec import GUEST_HOME, SHOWN_FOLDERS, SYSTEM_PATHS, Watch
from atoll.programs import protected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from atoll.egress.masks import Mask
    from atoll.network import NetworkPolicy

PROJECT_FILE = ".atoll.toml"
SYSTEM = "programs of the machine or the image are read-only"
PROTECTED = "other programs run it or obey it"
"""Why files stay read-only that no rule of the user names."""
MOST_LINKS = 40
CERTIFICATES = ("/etc/ssl/certs", "/etc/ca-certificates.conf", "/etc/pki/tls/certs")
_PASSED = ("PATH", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "NO_COLOR", "FORCE_COLOR", "CI")
_NEVER_WRITABLE = ("/", "/proc", "/dev", "/sys", *SHOWN_FOLDERS, *SYSTEM_PATHS)


class Access(StrEnum):
    """What a rule says about a path."""

    READ = "read"
    WRITE = "write"
    DENY_READ = "hidden"
    DENY_WRITE = "read-only"


SHOWING = (Access.READ, Access.WRITE)


@dataclass(frozen=True, slots=True)
class PathRule:
    """One path, links resolved, and what a program may do there."""

    path: Path
    access: Access
    reason: str
    """Where the rule comes from, such as `--write` or `.atoll.toml`."""
    owned: bool = True
    """Whether a program that root starts reads what only root may: not where nobody named it."""
    links: tuple[Path, ...] = ()
    """Links on the way to the path as it was written: a program must not replace them."""
    content: bytes | None = None
    """What a program reads in place of a hidden file; None: it reads nothing."""

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
        if access in SHOWING and not os.path.exists(real):
            raise ConfigError(f"{reason}: {path} does not exist, or you may not see it")
        return cls(real, access, reason, links=() if access in SHOWING else links_to(path))

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
    host_reasons: Mapping[str, str] = field(default_factory=dict)
    """By entry of `deny_hosts`: what a refusal says."""
    inspect_tls: bool = False
    """Whether the proxy reads https."""
    masks: tuple[Mask, ...] = ()
    """Credentials of which the program has a placeholder."""
    unix_sockets: bool = True
    """Whether it may make Unix sockets: through one that lies in a shown folder it would reach a
    program outside."""
    image: str | None = None
    """A container image whose files it sees in place of this machine's system."""
    user: str | None = None
    """A user of the image that it is seen as, by name or number; `image`: its USER."""
    workdir: str | None = None
    """A folder of the image where it starts instead; `image`: its WORKDIR."""
    entrypoint: bool = False
    """Whether the image's ENTRYPOINT runs, with the program's words or the image's CMD."""
    env: Mapping[str, str] = field(default_factory=dict)
    memory: int | None = None
    processes: int | None = 4096
    disk: int | None = 2 << 30
    """Size of the private folders (/tmp, the home folder) together."""
    watch: Watch = Watch.CHANGES
    """The refusals that are reported: each call costs about 0.05 ms that is looked at."""
    ignored: tuple[tuple[str, Path], ...] = ()
    """Parts of a command, or `*`, and a path below which its refusals are not reported."""
    hints: tuple[str, ...] = ()
    """What the caller should hear before the program starts."""

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
        if write:
            rules += protecting(protected.find(path))
        rules += [
            PathRule(Path(name), Access.READ, "certificates of this machine", owned=False)
            for name in CERTIFICATES
            if os.path.exists(name)
        ]
        return cls(folder=path, paths=tuple(rules))

    @property
    def network(self) -> NetworkPolicy | None:
        """What it may reach; None without an allowed host."""
        if not self.allow_hosts:
            return None
        from atoll.network import NetworkPolicy  # noqa: PLC0415 - most programs have none

        return NetworkPolicy(
            self.allow_hosts,
            deny=self.deny_hosts,
            inspect_tls=self.inspect_tls,
            max_bytes=None,
            max_requests=None,
            max_seconds=None,
        )

    def allowing(self, named: Iterable[PathRule]) -> ProgramRules:
        """Return the rules with more; one that names a protected path lifts its protection."""
        more = tuple(named)
        lifted = {rule.path for rule in more if rule.access is Access.WRITE}
        kept = (r for r in self.paths if r.reason != PROTECTED or r.path not in lifted)
        return replace(self, paths=(*kept, *more))

    def shown(self, path: Path) -> bool:
        """Return whether a program sees a path of this machine."""
        decides = self.rule_of(path)
        if decides is not None:
            return decides.access is not Access.DENY_READ
        return any(path.is_relative_to(system) for system in SYSTEM_PATHS)

    def rule_of(self, path: Path) -> PathRule | None:
        """Return the rule that decides about a path: the longest that it is below."""
        covering = [rule for rule in self.paths if path.is_relative_to(rule.path)]
        return max(covering, key=PathRule.rank, default=None)

    def mount_of(self, path: Path) -> PathRule | None:
        """Return the rule that decides about a path but for what keeps it read-only."""
        others = (rule for rule in self.paths if rule.access is not Access.DENY_WRITE)
        covering = [rule for rule in others if path.is_relative_to(rule.path)]
        return max(covering, key=PathRule.rank, default=None)

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the program's variables: harmless ones of `own`, then those of the rules."""
        passed = {
            name: value for name, value in own.items() if name in _PASSED or name.startswith("LC_")
        }
        at_home = {"HOME": GUEST_HOME, "USER": "guest", "LOGNAME": "guest", "SHELL": "/bin/sh"}
        return {**passed, **at_home, "PWD": str(self.folder), **self.env}

    def __post_init__(self) -> None:
        for name in ("user", "workdir", "entrypoint"):
            if self.image is None and getattr(self, name):
                raise ConfigError(f"--{name} is about an image: name one with --image")

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


def protecting(paths: Iterable[Path]) -> list[PathRule]:
    """Return the rules that keep files read-only which other programs run or obey."""
    return [PathRule.of(path, Access.DENY_WRITE, PROTECTED) for path in paths]


def links_to(path: Path) -> tuple[Path, ...]:
    """Return the links that lead to a path, each where it lies."""
    found: list[Path] = []
    here, names = Path("/"), list(path.parts[1:])
    while names:
        name = names.pop(0)
        here = here.parent if name == ".." else here / name
        if not here.is_symlink():
            continue
        if len(found) == MOST_LINKS:
            raise ConfigError(f"{path}: too many links lead there")
        found.append(here)
        target = Path(os.readlink(here))
        here = Path("/") if target.is_absolute() else here.parent
        names = [*target.parts[target.is_absolute() :], *names]
    return tuple(found)

"""Settings of Anthropic's sandbox-runtime (`srt`) as rules: the format of its version 0.0.78.

    {"network": {"allowedDomains": ["*.example.com"], "deniedDomains": []},
     "filesystem": {"denyRead": ["~/.ssh"], "allowRead": [], "allowWrite": ["."], "denyWrite": []},
     "credentials": {"envVars": [{"name": "TOKEN", "mode": "mask"}]}}

A program reads all of the machine that is not denied, and writes nothing that is not allowed. Keys
that are about other systems, or about programs that only srt starts, change nothing. A key that is
unknown, or that a jail has no means for, is refused.
"""

from __future__ import annotations

import glob
import itertools
import os
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.jail.supervisor.spec import GUEST_HOME, WORK_FOLDER
from atoll.network import HostRule
from atoll.programs import credentials, protected
from atoll.programs.rules import Access, PathRule, protecting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.programs.rules import ProgramRules
    from atoll.programs.table import Table

TMP = Path("/tmp")  # noqa: S108 - the machine's
MOST_MATCHES = 10_000
_ANYONE = 0o001
"""The right of all users to enter a folder."""
_HIDDEN_TOP = frozenset({"proc", "dev", "sys", "run", "app", "home", "usr"})
"""Folders of this machine's root that a jail has of its own, or not at all."""
_OWN = tuple(map(Path, ("/proc", "/dev", "/sys", "/run", GUEST_HOME, WORK_FOLDER)))
_NO_EFFECT = (
    *("enableWeakerNestedSandbox", "enableWeakerNetworkIsolation", "allowAppleEvents", "allowPty"),
    *("ripgrep", "seccomp", "bwrapPath", "socatPath", "javaAgentJarPath", "windows"),
)
_NO_EFFECT_ON_HOSTS = (
    *("strictAllowlist", "allowUnixSockets", "allowLocalBinding", "allowMachLookup"),
)
_NO_MEANS = {
    "httpProxyPort": "a program has no other proxy than Atoll's",
    "socksProxyPort": "a program has no other proxy than Atoll's",
    "mitmProxy": "requests go to their servers directly",
    "parentProxy": "requests go to their servers directly",
    "filterRequest": "a file has no functions",
}
_NO_MEANS_FOR_TLS = {
    "caCertPath": "each run has an authority of its own",
    "caKeyPath": "each run has an authority of its own",
    "excludeDomains": "https is read for all hosts or for none",
    "extraCaCertPaths": "the proxy checks servers by the certificates of this machine",
}
_ALWAYS = {"disabled": "there are always rules for files"}


def apply(rules: ProgramRules, given: Table) -> ProgramRules:
    """Return the rules with those of a settings file, which decide alone about files."""
    known = ("network", "filesystem", "credentials", "ignoreViolations", "git")
    given.check(*known, "mandatoryDenySearchDepth", *_NO_EFFECT)
    rules = _with_hosts(replace(rules, paths=()), given.table("network"))
    found = credentials.read(
        given.table("credentials"), rules.folder, rules.allow_hosts, os.environ
    )
    if found.masks and not (rules.inspect_tls or found.masks[0].plain):
        raise ConfigError(f"{given.path}: credentials that are masked need network.tlsTerminate")
    paths = [*_files(given, rules.folder), *found.paths, *_protected(given, rules.folder)]
    private = {} if _is_allowed(paths, TMP) else {"TMPDIR": WORK_FOLDER}
    return replace(
        rules,
        paths=(*paths, PathRule.of(given.path, Access.DENY_WRITE, "these settings")),
        env={**rules.env, **private, **_git(given.table("git")), **found.env},
        masks=tuple(found.masks),
        hints=(*rules.hints, *found.hints),
        ignored=tuple(_ignored(given.table("ignoreViolations"))),
    )


def _with_hosts(rules: ProgramRules, given: Table) -> ProgramRules:
    keys = ("allowedDomains", "deniedDomains", "deniedDomainReasons", "deniedResolvedAddresses")
    more = ("allowAllUnixSockets", "tlsTerminate", *_NO_EFFECT_ON_HOSTS)
    given.check(*keys, *more, *_NO_MEANS).refuse(_NO_MEANS)
    tls = given.table("tlsTerminate")
    tls.check(*_NO_MEANS_FOR_TLS).refuse(_NO_MEANS_FOR_TLS)
    allow, deny = given.texts("allowedDomains"), given.texts("deniedDomains")
    for text in (*allow, *deny):
        host = HostRule.parse(text)
        if host.address is None and not _is_narrow(host.host, denied=text in deny):
            raise ConfigError(f"{given.path}: {text!r:.80} is not a domain such as *.example.com")
    for text in given.texts("deniedResolvedAddresses"):
        if not _is_private(text):
            why = "only private addresses can be denied, which they always are"
            raise ConfigError(f"{given.path}: network.deniedResolvedAddresses: {text!r:.80}: {why}")
    return replace(
        rules,
        allow_hosts=(*rules.allow_hosts, *allow),
        deny_hosts=(*rules.deny_hosts, *deny),
        host_reasons=given.texts_by_name("deniedDomainReasons"),
        inspect_tls="tlsTerminate" in given.given,
        unix_sockets=given.flag("allowAllUnixSockets"),
    )


def _is_narrow(host: str, *, denied: bool) -> bool:
    """Return whether a domain is not too broad, such as `*.com`."""
    if host == "*":
        return denied
    return host == "localhost" or host.removeprefix("*.").count(".") > 0


def _is_private(text: str) -> bool:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return False
    return not network.is_global


def _files(given: Table, folder: Path) -> list[PathRule]:
    """Return the rules of the files, in the order of precedence that srt has.

    An allowRead beats the denyRead of the same path or one above it; a denyWrite beats every
    allowWrite at it or below.
    """
    files = given.table("filesystem")
    keys = ("allowRead", "denyRead", "allowWrite", "denyWrite")
    files.check(*keys, "allowGitConfig", "disabled").refuse(_ALWAYS)
    allow_read, deny_read, allow_write, deny_write = (
        list(_paths(files, key, folder)) for key in keys
    )
    writable = [
        path
        for path in allow_write
        if path.exists() and not any(path.is_relative_to(own) for own in _OWN)
    ]
    kept = [path for path in writable if not any(map(path.is_relative_to, deny_write))]
    hidden = [path for path in deny_read if path not in allow_read]
    again = [path for path in allow_read if path.exists() and _is_reopened(path, hidden, kept)]
    here = [] if any(map(folder.is_relative_to, (*again, *kept))) else [folder]
    if here and any(map(folder.is_relative_to, hidden)):
        raise ConfigError(f"{given.path}: filesystem.denyRead hides the current folder")
    ways = _ways([*here, *again, *kept], hidden)
    return [
        *([] if Path("/") in hidden else _whole_machine(given.path.name)),
        *(PathRule(path, Access.DENY_READ, "only root reads it") for path in ways),
        *(PathRule(path, Access.READ, "the current folder") for path in here),
        *(PathRule(path, Access.READ, "allowRead") for path in again),
        *(PathRule(path, Access.READ, "denyWrite") for path in writable if path not in kept),
        *(_write_rule(path) for path in kept),
        *(PathRule.of(path, Access.DENY_READ, "denyRead") for path in hidden if path != Path("/")),
        *(PathRule.of(path, Access.DENY_WRITE, "denyWrite") for path in deny_write),
    ]


def _ways(named: list[Path], hidden: list[Path]) -> set[Path]:
    """Return folders that only root may enter, on the way to paths that a program of root uses.

    It does not run as root, so it needs another way through them.
    """
    if os.geteuid():
        return set()
    above = {parent for path in named for parent in path.parents}
    closed = {path for path in above if not path.stat().st_mode & _ANYONE}
    return {path for path in closed if not any(map(path.is_relative_to, (*named, *hidden)))}


def _paths(files: Table, key: str, folder: Path) -> Iterable[Path]:
    """Yield the paths of a list, links resolved; of a pattern, what matches it now."""
    for text in files.texts(key):
        if not text or "\0" in text:
            raise ConfigError(f"{files.path}: filesystem.{key}: not a path: {text!r:.80}")
        plain = text.removesuffix("/**") or "/"
        path = os.path.join(folder, os.path.expanduser(plain))
        if not glob.has_magic(plain):
            yield Path(os.path.realpath(path))
            continue
        if plain.endswith("/"):
            raise ConfigError(f"{files.path}: filesystem.{key}: {text!r:.80} matches no path")
        if path != plain:
            path = os.path.join(glob.escape(str(folder)), os.path.expanduser(plain))
        found = glob.iglob(path, recursive=True, include_hidden=True)
        matches = list(itertools.islice(found, MOST_MATCHES + 1))
        if len(matches) > MOST_MATCHES:
            raise ConfigError(f"{files.path}: filesystem.{key}: {text!r:.80} matches too much")
        yield from (Path(os.path.realpath(match)) for match in matches)


def _is_reopened(path: Path, hidden: list[Path], writable: list[Path]) -> bool:
    """Return whether the innermost rule above a path hides it."""
    above = [(len(one.parts), one in hidden) for one in (*hidden, *writable) if one in path.parents]
    return max(above, default=(0, False))[1]


def _whole_machine(name: str) -> list[PathRule]:
    folders = [folder for folder in Path("/").iterdir() if folder.name not in _HIDDEN_TOP]
    folders += [home for home in Path("/home").glob("*") if str(home) != GUEST_HOME]
    reason = f"{name} denies only what it names"
    return [
        PathRule(folder, Access.READ, reason, owned=False)
        for folder in sorted(folders)
        if folder.is_dir() and not folder.is_symlink()
    ]


def _write_rule(path: Path) -> PathRule:
    if path == TMP:  # a jail has one of its own, unless settings ask for the machine's
        return PathRule(path, Access.WRITE, "allowWrite")
    return PathRule.of(path, Access.WRITE, "allowWrite")


def _is_allowed(paths: Iterable[PathRule], path: Path) -> bool:
    return any(rule.access is Access.WRITE and path.is_relative_to(rule.path) for rule in paths)


def _protected(given: Table, folder: Path) -> list[PathRule]:
    """Return the rules for files that srt always protects; it calls them mandatory."""
    depth = given.number("mandatoryDenySearchDepth", 1, 10) or protected.DEPTH
    found = {*protected.named(folder), *protected.find(folder, depth)}
    if given.table("filesystem").flag("allowGitConfig"):
        found = {path for path in found if path.name != protected.CONFIG}
    return protecting(sorted(found))


def _git(given: Table) -> dict[str, str]:
    """Return the variables by which git trusts folders of other users."""
    folders = given.check("safeDirectories").texts("safeDirectories")
    env = {"GIT_CONFIG_COUNT": str(len(folders))} if folders else {}
    for number, folder in enumerate(folders):
        env |= {f"GIT_CONFIG_KEY_{number}": "safe.directory", f"GIT_CONFIG_VALUE_{number}": folder}
    return env


def _ignored(given: Table) -> Iterable[tuple[str, Path]]:
    """Yield parts of commands, and paths whose refusal is not reported for them."""
    for command in given.given:
        yield from ((command, Path(path)) for path in given.texts(command))

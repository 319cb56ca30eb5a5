"""Rules from a file: `.atoll.toml` of a project, or settings of sandbox-runtime as JSON.

    [exec]
    write = ["build", "~/.cache/pip"]      # beside the current folder
    read = ["~/.pyenv"]
    deny_read = ["secrets"]
    deny_write = ["package-lock.json"]
    allow_hosts = ["registry.example.com", "*.example.org"]
    env = { MODE = "test" }
    memory_bytes = 4_000_000_000

SECURITY: a file that lies in a folder may be a stranger's. So a project's file is obeyed as it is
only if the caller names it; else it may forbid more, but allow nothing.
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from atoll.errors import ConfigError
from atoll.jail.supervisor.spec import GUEST_HOME
from atoll.policy import check_keys
from atoll.programs.rules import Access, PathRule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atoll.programs.rules import ProgramRules

PROJECT_FILE = ".atoll.toml"
MAX_BYTES = 1 << 20
_PATHS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "deny_read": Access.DENY_READ,
    "deny_write": Access.DENY_WRITE,
}
_SRT_PATHS = {
    "allowRead": Access.READ,
    "allowWrite": Access.WRITE,
    "denyRead": Access.DENY_READ,
    "denyWrite": Access.DENY_WRITE,
}
_KEYS = (*_PATHS, "allow_hosts", "deny_hosts", "env", "memory_bytes")
_HIDDEN_TOP = frozenset({"proc", "dev", "sys", "tmp", "run", "app", "home", "usr"})
"""Folders of this machine's root that a jail has of its own, or not at all."""


def apply_project(rules: ProgramRules) -> tuple[ProgramRules, str]:
    """Return the rules with what the folder's own file forbids, and a hint if it asks for more."""
    path = rules.folder / PROJECT_FILE
    if not path.is_file():
        return rules, ""
    given = _table(path)
    asked = [key for key in given if not key.startswith("deny_")]
    denied = {key: _PATHS[key] for key in ("deny_read", "deny_write")}
    rules = _with_hosts(
        _with_paths(rules, path, given, denied), [], _texts(path, given, "deny_hosts")
    )
    if not asked:
        return rules, ""
    return rules, (
        f"{PROJECT_FILE} of this folder asks for more ({', '.join(asked)}). If you trust it: "
        f"--settings {PROJECT_FILE}"
    )


def apply_file(rules: ProgramRules, path: Path) -> ProgramRules:
    """Return the rules with those of a file that the caller named."""
    return apply_srt(rules, path) if path.suffix == ".json" else apply_toml(rules, path)


def apply_toml(rules: ProgramRules, path: Path) -> ProgramRules:
    """Return the rules with those of a TOML file; ConfigError names the faulty line."""
    given = _table(path)
    env, memory = given.get("env", {}), given.get("memory_bytes", rules.memory)
    if not _is_table_of_text(env):
        raise ConfigError(f"{path}: env must be a table of texts")
    if memory is not None and (not isinstance(memory, int) or memory < 1):
        raise ConfigError(f"{path}: memory_bytes must be a number of bytes")
    rules = _with_paths(rules, path, given, _PATHS)
    rules = _with_hosts(
        rules, _texts(path, given, "allow_hosts"), _texts(path, given, "deny_hosts")
    )
    return replace(rules, env={**rules.env, **env}, memory=memory)


def _table(path: Path) -> dict[str, Any]:
    """Return the table `exec` of a TOML file."""
    given = _read(path, tomllib.loads).get("exec", {})
    _check(path, given, _KEYS)
    return dict(given)


def apply_srt(rules: ProgramRules, path: Path) -> ProgramRules:
    """Return the rules with those of a settings file of sandbox-runtime.

    There all of the machine can be read unless it is denied, so its root is shown. What has no
    meaning in a jail of ours is refused, not ignored.
    """
    given = _read(path, json.loads)
    _check(path, given, ("network", "filesystem"))
    network, files = given.get("network", {}), given.get("filesystem", {})
    _check(path, network, ("allowedDomains", "deniedDomains"))
    _check(path, files, tuple(_SRT_PATHS))
    folders = [folder for folder in Path("/").iterdir() if folder.name not in _HIDDEN_TOP]
    folders += [home for home in Path("/home").glob("*") if str(home) != GUEST_HOME]
    shown = tuple(
        PathRule(folder, Access.READ, f"{path.name} denies only what it names", owned=False)
        for folder in sorted(folders)
        if folder.is_dir() and not folder.is_symlink()
    )
    rules = replace(rules, paths=(*shown, *rules.paths))
    rules = _with_paths(rules, path, files, _SRT_PATHS)
    return _with_hosts(
        rules, _texts(path, network, "allowedDomains"), _texts(path, network, "deniedDomains")
    )


def _with_paths(
    rules: ProgramRules, path: Path, given: Mapping[str, Any], keys: Mapping[str, Access]
) -> ProgramRules:
    made = [
        PathRule.of(text, access, f"{key} in {path.name}", rules.folder)
        for key, access in keys.items()
        for text in _texts(path, given, key)
    ]
    return replace(rules, paths=(*rules.paths, *made))


def _with_hosts(rules: ProgramRules, allow: list[str], deny: list[str]) -> ProgramRules:
    return replace(
        rules,
        allow_hosts=(*rules.allow_hosts, *allow),
        deny_hosts=(*rules.deny_hosts, *deny),
    )


def _read(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
        given = parse(data.decode())
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {os.strerror(exc.errno or 0)}") from None
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: {exc}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: must be an object")
    return given


def _check(path: Path, given: object, known: tuple[str, ...]) -> None:
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: must be an object, not {given!r:.80}")
    try:
        check_keys("key", given, known)
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from None


def _texts(path: Path, given: Mapping[str, Any], key: str) -> list[str]:
    texts = given.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{path}: {key} must be a list of texts")
    return texts


def _is_table_of_text(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())

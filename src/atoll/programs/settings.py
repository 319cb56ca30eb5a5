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
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

from atoll.programs import srt
from atoll.programs.rules import PROJECT_FILE, Access, PathRule
from atoll.programs.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from atoll.programs.rules import ProgramRules

_PATHS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "deny_read": Access.DENY_READ,
    "deny_write": Access.DENY_WRITE,
}
_KEYS = (*_PATHS, "allow_hosts", "deny_hosts", "env", "memory_bytes")


def apply_project(rules: ProgramRules) -> tuple[ProgramRules, str]:
    """Return the rules with what the folder's own file forbids, and a hint if it asks for more."""
    path = rules.folder / PROJECT_FILE
    if not path.is_file():
        return rules, ""
    given = _exec_table(path)
    asked = [key for key in given.given if not key.startswith("deny_")]
    denied = {key: _PATHS[key] for key in ("deny_read", "deny_write")}
    rules = _with_paths(rules, given, denied)
    rules = replace(rules, deny_hosts=(*rules.deny_hosts, *given.texts("deny_hosts")))
    if not asked:
        return rules, ""
    return rules, (
        f"{PROJECT_FILE} of this folder asks for more ({', '.join(asked)}). If you trust it: "
        f"--settings {PROJECT_FILE}"
    )


def apply_file(rules: ProgramRules, path: Path) -> ProgramRules:
    """Return the rules with those of a file that the caller named."""
    if path.suffix == ".json":
        return srt.apply(rules, Table.read(path, json.loads))
    given = _exec_table(path)
    rules = _with_paths(rules, given, _PATHS)
    return replace(
        rules,
        allow_hosts=(*rules.allow_hosts, *given.texts("allow_hosts")),
        deny_hosts=(*rules.deny_hosts, *given.texts("deny_hosts")),
        env={**rules.env, **given.texts_by_name("env")},
        memory=given.number("memory_bytes", 1) or rules.memory,
    )


def _exec_table(path: Path) -> Table:
    """Return the table `exec` of a TOML file."""
    return Table.read(path, tomllib.loads).table("exec").check(*_KEYS)


def _with_paths(rules: ProgramRules, given: Table, keys: Mapping[str, Access]) -> ProgramRules:
    made = [
        PathRule.of(text, access, f"{key} in {given.path.name}", rules.folder)
        for key, access in keys.items()
        for text in given.texts(key)
    ]
    return replace(rules, paths=(*rules.paths, *made))

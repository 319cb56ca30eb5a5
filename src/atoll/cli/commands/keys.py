"""`atoll keys`: add, list and revoke the API keys of `atoll serve`, also while it runs."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from atoll.cli.argument_types import size
from atoll.cli.commands import serve
from atoll.cli.terminal.table import columns
from atoll.config import expand_home
from atoll.errors import ConfigError
from atoll.text.amounts import ago_text, size_text

if TYPE_CHECKING:
    from argparse import Namespace

NOT_THERE = 1


def command(args: Namespace) -> int:
    """Run the subcommand; return the exit code."""
    keys, database, settings, audit = (
        serve.load(name) for name in ("access.keys", "storage.database", "settings", "access.audit")
    )
    folder = expand_home(args.folder).absolute() if args.folder else settings.default_folder()
    opened = database.Database(folder)
    try:
        known, log = keys.Keys(opened), audit.AuditLog(opened)
        if args.action == "add":
            return _add(args, known, keys, log)
        if args.action == "list":
            return _list(args, known, keys.Quota())
        return _revoke(args, known, log)
    finally:
        opened.close()


def _add(args: Namespace, known: Any, keys: Any, log: Any) -> int:
    quota = keys.Quota.of(dict(_number(text) for text in args.quota))
    scopes = tuple(args.scope or keys.USUAL_SCOPES)
    made = known.add(
        args.name, tenant=args.tenant, scopes=scopes, seconds=args.expires, quota=quota
    )
    log.note("key made", made.split("_")[1], name=args.name, of=args.tenant)
    print(made)
    return 0


def _list(args: Namespace, known: Any, usual: Any) -> int:
    rows = known.list()
    if args.json:
        shown = [{name: getattr(key, name) for name in key.__struct_fields__} for key in rows]
        print(json.dumps({"keys": shown}))
        return 0
    if rows:
        head = ("ID", "STATE", "TENANT", "USED", "SCOPES", "LIMITS", "NAME")
        print(columns(head, [_row(key, asdict(usual)) for key in rows]))
    else:
        print("there is no key: type atoll keys add NAME")
    return 0


def _row(key: Any, usual: dict[str, Any]) -> tuple[str, ...]:
    """Return a key for the table; of its limits only those that are not the usual ones."""
    expired = key.expires is not None and key.expires < time.time()
    state = "revoked" if key.revoked else "expired" if expired else "valid"
    used = "never" if key.used is None else ago_text(time.time() - key.used)
    own = {name: value for name, value in key.quota.items() if value != usual.get(name)}
    limits = " ".join(f"{name}={_limit(name, value)}" for name, value in own.items())
    return key.id, state, key.tenant, used, " ".join(key.scopes), limits or "usual", key.name


def _limit(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    return size_text(int(value)).replace(" ", "") if "bytes" in name else f"{value:g}"


def _revoke(args: Namespace, known: Any, log: Any) -> int:
    if known.revoke(args.id):
        log.note("key revoked", args.id)
        print(f"the key {args.id} is refused from now on")
        return 0
    print(f"there is no valid key with the id {args.id}")
    return NOT_THERE


def _number(text: str) -> tuple[str, float | int | None]:
    name, _, value = text.partition("=")
    try:
        if "bytes" in name or value == "none":
            return name, size(value)
        return name, int(value) if value.isdecimal() else float(value)
    except (ValueError, argparse.ArgumentTypeError):
        example = "memory_bytes=1G" if "bytes" in name else "sessions=4"
        text = f"--quota must be NAME=NUMBER, such as {example}, not {text!r}"
        raise ConfigError(text) from None

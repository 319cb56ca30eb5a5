"""`atoll keys`: add, list and revoke the API keys of `atoll serve`, also while it runs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from atoll.cli.commands import serve
from atoll.config import expand_home
from atoll.errors import ConfigError
from atoll.text.amounts import ago_text

if TYPE_CHECKING:
    from argparse import Namespace

NOT_THERE = 1


def command(args: Namespace) -> int:
    """Do what was asked; return the exit code."""
    keys, database, settings = (
        serve.load(name) for name in ("access.keys", "storage.database", "settings")
    )
    folder = expand_home(args.folder).absolute() if args.folder else settings.default_folder()
    opened = database.Database(folder)
    try:
        known = keys.Keys(opened)
        if args.action == "add":
            return _add(args, known, keys)
        return _list(args, known) if args.action == "list" else _revoke(args, known)
    finally:
        opened.close()


def _add(args: Namespace, known: Any, keys: Any) -> int:
    quota = keys.Quota.of(dict(_number(text) for text in args.quota))
    scopes = tuple(args.scope or keys.USUAL_SCOPES)
    made = known.add(
        args.name, tenant=args.tenant, scopes=scopes, seconds=args.expires, quota=quota
    )
    print(made)
    return 0


def _list(args: Namespace, known: Any) -> int:
    rows = known.list()
    if args.json:
        shown = [{name: getattr(key, name) for name in key.__struct_fields__} for key in rows]
        print(json.dumps({"keys": shown}))
        return 0
    for key in rows:
        expired = key.expires is not None and key.expires < time.time()
        state = "revoked" if key.revoked else "expired" if expired else "valid"
        used = "never used"
        if key.used is not None:
            used = f"used {ago_text(time.time() - key.used)}"
        scopes = " ".join(key.scopes)
        print(f"{key.id}  {state:8} {key.tenant:14} {used:16} {scopes:36} {key.name}")
    if not rows:
        print("there is no key: type atoll keys add NAME")
    return 0


def _revoke(args: Namespace, known: Any) -> int:
    if known.revoke(args.id):
        print(f"the key {args.id} is refused from now on")
        return 0
    print(f"there is no valid key with the id {args.id}")
    return NOT_THERE


def _number(text: str) -> tuple[str, float | int]:
    name, _, value = text.partition("=")
    try:
        return name, int(value) if value.isdecimal() else float(value)
    except ValueError:
        raise ConfigError(f"--quota must be NAME=NUMBER, not {text!r}") from None

"""`atoll env`: builds, lists, shows and removes environments of packages by name."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from atoll.cli.settings import check_python
from atoll.errors import ConfigError
from atoll.launch import interpreter
from atoll.packages import environment, store
from atoll.packages.environment import ensure
from atoll.packages.target import for_interpreter
from atoll.text.amounts import ago_text, size_text
from atoll.text.requirements import check_environment_name

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.packages.store import Environment

SHORT = 12


def command(args: Namespace) -> int:
    """Do what was asked; return the exit code."""
    actions = {"create": create, "list": list_all, "show": show, "remove": remove}
    return actions[args.action](args)


def create(args: Namespace) -> int:
    """Build an environment and give it a name."""
    if not args.packages:
        raise ConfigError("name at least one package: --package polars")
    if args.python is not None:
        check_python(args.python)
    wanted = environment.expand(args.packages)
    target = for_interpreter(interpreter.resolve(args.python))
    check_environment_name(args.name)
    hold = ensure(wanted, target, allow_source=args.allow_source, refresh=args.refresh)
    environment.set_name(args.name, wanted)
    _print_packages(hold.environment)
    say = f"{args.name} is ready: {size_text(hold.environment.size)}, {hold.environment.label}"
    print(f"atoll: {say}. Use it with --package @{args.name}", file=sys.stderr)
    hold.close()
    return 0


def list_all(args: Namespace) -> int:
    """Print one line for each environment, last used first."""
    known = environment.names()
    found = store.everything()
    if args.json:
        print(json.dumps([_facts(one, known) for one in found]))
        return 0
    if not found:
        print("atoll: no environments. Type: atoll env create NAME --package X", file=sys.stderr)
        return 0
    print(f"{'NAME':16} {'HASH':{SHORT}} {'PYTHON':12} {'SIZE':>9}  {'USED':16} PACKAGES")
    for one in found:
        names = ",".join(_names_of(one, known)) or "-"
        asked = ", ".join(one.requirements)
        used = ago_text(time.time() - one.used)
        short = one.hash[:SHORT]
        print(f"{names:16} {short} {one.label:12} {size_text(one.size):>9}  {used:16} {asked}")
    return 0


def show(args: Namespace) -> int:
    """Print what is in an environment."""
    known = environment.names()
    found = _find(args.name, known)
    if args.json:
        print(json.dumps([_facts(one, known) for one in found]))
        return 0
    for one in found:
        print(f"environment  {one.hash}  ({', '.join(_names_of(one, known)) or 'no name'})")
        print(f"asked for    {', '.join(one.requirements)}")
        print(f"python       {one.label} ({one.target})")
        print(f"size         {size_text(one.size)} in {one.folder}")
        print(f"used         {ago_text(time.time() - one.used)}")
        _print_packages(one)
    return 0


def remove(args: Namespace) -> int:
    """Delete environments; the exit code is 1 if one of them is in use."""
    code = 0
    for name in args.name:
        known = environment.names()
        found = _find(name, known)
        if name in known:
            environment.forget_name(name)
        for one in found:
            if not environment.forget(one.hash):
                print(f"atoll: {name} is in use: it was not removed", file=sys.stderr)
                code = 1
    return code


def _find(name: str, known: dict[str, tuple[str, ...]]) -> list[Environment]:
    """Return the environments of a name, or of a hash; ConfigError if there is none."""
    found = store.everything()
    if name in known:
        return [one for one in found if one.requirements == known[name]]
    beginning = [one for one in found if len(name) >= 4 and one.hash.startswith(name)]
    if not beginning:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"no environment {name!r}: there are {names}. Type: atoll env list")
    return beginning


def _names_of(one: Environment, known: dict[str, tuple[str, ...]]) -> list[str]:
    return sorted(name for name, asked in known.items() if asked == one.requirements)


def _facts(one: Environment, known: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    fields = dataclasses.asdict(one)
    more = {"names": _names_of(one, known), "used": one.used, "folder": str(one.folder)}
    return {**fields, **more}


def _print_packages(one: Environment) -> None:
    for package in one.packages:
        origin = "  built from source" if package.from_source else ""
        print(f"{package.name}=={package.version}  sha256:{package.sha256[:16]}…{origin}")

"""`atoll env`: builds, lists, shows and removes environments of packages by name."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

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
    """Run the subcommand; return the exit code."""
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
    environments = store.everything()
    if args.json:
        print(json.dumps([_facts(item, known) for item in environments]))
        return 0
    if not environments:
        print("atoll: no environments. Type: atoll env create NAME --package X", file=sys.stderr)
        return 0
    print(f"{'NAME':16} {'HASH':{SHORT}} {'PYTHON':12} {'SIZE':>9}  {'USED':16} PACKAGES")
    for item in environments:
        names = ",".join(_names_of(item, known)) or "-"
        asked = ", ".join(item.requirements)
        used = ago_text(time.time() - item.used)
        short = item.hash[:SHORT]
        print(f"{names:16} {short} {item.label:12} {size_text(item.size):>9}  {used:16} {asked}")
    return 0


def show(args: Namespace) -> int:
    """Print the packages of an environment."""
    known = environment.names()
    environments = _find(args.name, known)
    if args.json:
        print(json.dumps([_facts(item, known) for item in environments]))
        return 0
    for item in environments:
        print(f"environment  {item.hash}  ({', '.join(_names_of(item, known)) or 'no name'})")
        print(f"asked for    {', '.join(item.requirements)}")
        print(f"python       {item.label} ({item.target})")
        print(f"size         {size_text(item.size)} in {item.folder}")
        print(f"used         {ago_text(time.time() - item.used)}")
        _print_packages(item)
    return 0


def remove(args: Namespace) -> int:
    """Delete environments; the exit code is 1 if one of them is in use."""
    code = 0
    for name in args.name:
        known = environment.names()
        environments = _find(name, known)
        if name in known:
            environment.forget_name(name)
        for item in environments:
            if not environment.forget(item.hash):
                print(f"atoll: {name} is in use: it was not removed", file=sys.stderr)
                code = 1
    return code


def _find(name: str, known: dict[str, tuple[str, ...]]) -> list[Environment]:
    """Return the environments of a name, or of a hash; ConfigError if it is missing."""
    environments = store.everything()
    if name in known:
        return [item for item in environments if item.requirements == known[name]]
    beginning = [item for item in environments if len(name) >= 4 and item.hash.startswith(name)]
    if not beginning:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"no environment {name!r}: there are {names}. Type: atoll env list")
    return beginning


def _names_of(env: Environment, known: dict[str, tuple[str, ...]]) -> list[str]:
    return sorted(name for name, asked in known.items() if asked == env.requirements)


def _facts(env: Environment, known: dict[str, tuple[str, ...]]) -> dict[str, object]:
    fields = dataclasses.asdict(env)
    more = {"names": _names_of(env, known), "used": env.used, "folder": str(env.folder)}
    return {**fields, **more}


def _print_packages(env: Environment) -> None:
    for package in env.packages:
        origin = "  built from source" if package.from_source else ""
        print(f"{package.name}=={package.version}  sha256:{package.sha256[:16]}…{origin}")

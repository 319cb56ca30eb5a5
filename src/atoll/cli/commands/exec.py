"""`atoll exec`: any program of this machine in a jail; its streams and exit code are ours."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cli.argument_types import variables
from atoll.programs import settings
from atoll.programs.rules import Access, PathRule, ProgramRules
from atoll.programs.run import find_program, run

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.programs.run import ProgramEnd

_OPTIONS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "deny_read": Access.DENY_READ,
    "deny_write": Access.DENY_WRITE,
}


def command(args: Namespace) -> int:
    """Run the program; return its exit code."""
    rules = rules_from(args)
    if args.args or not args.explain:
        find_program(args.args, rules)
    if args.explain:
        print(rules.explain(), end="")
        return 0
    end = asyncio.run(run(args.args, rules, seconds=args.timeout))
    if args.report is not None:
        Path(args.report).write_text(json.dumps(as_json(args.args, end)) + "\n")
    _say(end)
    return end.exit_code


def rules_from(args: Namespace) -> ProgramRules:
    """Return the rules that the options, the settings and the folder's own file make together."""
    rules, hint = settings.apply_project(ProgramRules.for_folder(write=not args.read_only))
    if args.settings is not None:
        rules, hint = settings.apply_file(rules, Path(args.settings)), ""
    if hint:
        print(f"atoll: {hint}", file=sys.stderr)
    named = [
        PathRule.of(path, access, f"--{name.replace('_', '-')}")
        for name, access in _OPTIONS.items()
        for path in getattr(args, name)
    ]
    return dataclasses.replace(
        rules,
        paths=(*rules.paths, *named),
        image=args.image,
        allow_hosts=(*rules.allow_hosts, *args.allow_host),
        env={**rules.env, **variables(args)},
        memory=rules.memory if args.memory is ... else args.memory,
    )


def as_json(argv: list[str], end: ProgramEnd) -> dict[str, object]:
    """Return how a program ended, for programs that read it."""
    refused = end.network.refused if end.network else ()
    return {
        "argv": argv,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "out_of_memory": end.out_of_memory,
        "timed_out": end.timed_out,
        "refused": [
            {"host": request.host, "port": request.port, "reason": request.refused}
            for request in refused
        ],
        "created": list(end.created),
    }


def _say(end: ProgramEnd) -> None:
    """Say on stderr what the program itself may have kept back."""
    lines = []
    if end.timed_out:
        lines.append("the time limit ended it")
    if end.out_of_memory:
        lines.append("it needed more memory than --memory allows")
    hosts = {f"{r.host}:{r.port}" for r in end.network.refused} if end.network else set()
    lines += [f"it was refused {host}: add --allow-host {host}" for host in sorted(hosts)]
    if end.created:
        names = ", ".join(end.created)
        lines.append(f"it made {names}, which other programs run or obey: look before you use it")
    for line in lines:
        print(f"atoll: {line}", file=sys.stderr)

"""Runs the program of `atoll exec`, and says how it ended."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cli.argument_types import variables
from atoll.jail.supervisor.spec import Watch
from atoll.programs.find import NoProgramError, find_program
from atoll.programs.rules import PROJECT_FILE, SYSTEM, Access, PathRule, ProgramRules
from atoll.programs.run import run_program
from atoll.text.amounts import printable

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.network import NetworkRequest
    from atoll.programs.refusals import RefusedFile
    from atoll.programs.run import ProgramEnd

# What most runs do not need is imported on first use: a short program takes less time than that.
# ruff: noqa: PLC0415

MOST_LINES = 5
_OPTIONS = {
    "read": Access.READ,
    "write": Access.WRITE,
    "deny_read": Access.DENY_READ,
    "deny_write": Access.DENY_WRITE,
}


def execute(args: Namespace) -> int:
    """Run the program; return its exit code."""
    rules = rules_from(args)
    try:
        if args.args or not (args.explain or args.entrypoint):
            find_program(args.args, rules)
        if args.explain:
            print(rules.explain(), end="")
            return 0
        end = run_program(args.args, rules, timeout_seconds=args.timeout)
    except NoProgramError as exc:
        print(f"atoll: {exc}", file=sys.stderr)
        return exc.exit_code
    if args.report is not None:
        Path(args.report).write_text(json.dumps(as_json(args.args, end)) + "\n")
    for line in summary(end, rules):
        print(f"atoll: {printable(line)}", file=sys.stderr)
    return end.exit_code


def rules_from(args: Namespace) -> ProgramRules:
    """Return the rules that the options, the settings and the folder's own file make together."""
    rules, hint = ProgramRules.for_folder(write=not args.read_only), ""
    if args.settings is not None or (rules.folder / PROJECT_FILE).exists():
        from atoll.programs import settings

        rules, hint = settings.apply_project(rules)
        if args.settings is not None:
            rules, hint = settings.apply_file(rules, Path(args.settings)), ""
    for text in filter(None, (hint, *rules.hints)):
        print(f"atoll: {text}", file=sys.stderr)
    named = [
        PathRule.of(path, access, f"--{name.replace('_', '-')}")
        for name, access in _OPTIONS.items()
        for path in getattr(args, name)
    ]
    return dataclasses.replace(
        rules.allowing(named),
        image=args.image,
        user=args.user,
        workdir=args.workdir,
        entrypoint=args.entrypoint,
        allow_hosts=(*rules.allow_hosts, *args.allow_host),
        env={**rules.env, **variables(args)},
        memory=rules.memory if args.memory is ... else args.memory,
        watch=rules.watch if args.watch is None else Watch(args.watch),
    )


def as_json(argv: list[str], end: ProgramEnd) -> dict[str, object]:
    """Return how a program ended, for programs that read it."""
    return {
        "argv": argv,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "out_of_memory": end.out_of_memory,
        "timed_out": end.timed_out,
        "refused": [
            {"host": request.host, "port": request.port, "reason": request.refused}
            for request in (end.network.refused if end.network else ())
        ],
        "refused_files": [dataclasses.asdict(file) for file in end.refused_files],
        "created": list(end.created),
    }


def summary(end: ProgramEnd, rules: ProgramRules) -> list[str]:
    """Return what the program itself may have kept back, a line each."""
    lines = []
    if end.timed_out:
        lines.append("the time limit ended it")
    if end.out_of_memory:
        lines.append("it needed more memory than --memory allows")
    refused = end.network.refused if end.network else ()
    lines += [_host_line(request, rules) for request in refused]
    lines += _file_lines(end)
    if end.created:
        names = ", ".join(end.created)
        lines.append(f"it made {names}, which other programs run or obey: look before you use it")
    return list(dict.fromkeys(lines))


def _host_line(request: NetworkRequest, rules: ProgramRules) -> str:
    from atoll.network import HostRule

    for text in rules.deny_hosts:
        rule = HostRule.parse(text)
        if rule.names(request.host) and rule.port in (None, request.port):
            why = rules.host_reasons.get(text, f"{text} is denied by name")
            return f"it was refused {request.place}: {why}"
    return f"it was refused {request.place}: add --allow-host {request.place}"


def _file_lines(end: ProgramEnd) -> list[str]:
    """Return the refused files; those that one option would allow are one line."""
    groups: dict[tuple[str, str, str], list[RefusedFile]] = {}
    for file in end.refused_files:
        if file.rule != SYSTEM:  # programs try, such as Python for __pycache__, and go on
            groups.setdefault((file.access, file.rule, file.add), []).append(file)
    lines = []
    for (access, rule, add), files in list(groups.items())[:MOST_LINES]:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        what = f"it was refused to {access} {files[0].path}{more} ({rule})"
        lines.append(f"{what}: add {add}" if add else what)
    if len(groups) > MOST_LINES:
        lines.append("it was refused more files: --report FILE lists them")
    return lines

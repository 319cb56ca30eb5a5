"""`atoll memory`: list, show, export and forget what earlier runs left in an episodic memory."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from atoll.agent.memory.episodic import EpisodicMemory
from atoll.agent.trajectory import reader, terminal_text
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.agent.memory.episodic import Item

INTENT = 60


def command(args: Namespace) -> int:
    """Do what is asked with a memory's file; return the exit code."""
    if not os.path.exists(args.file):
        raise ConfigError(f"there is no memory {args.file!r}: `atoll ask --memory-file` makes one")
    memory = EpisodicMemory(args.file, namespace=args.namespace)
    actions = {"list": _list, "show": _show, "export": _export, "forget": _forget}
    return actions[args.action](memory, args)


def _list(memory: EpisodicMemory, args: Namespace) -> int:
    if args.json:
        print(json.dumps(list(memory.export())))
        return 0
    items = memory.items()
    for one in items:
        told = terminal_text.clip(terminal_text.line(one.intent), INTENT)
        print(f"{one.id:>6}  {one.strategy:<9}  Q {one.q:.2f}  {one.runs:>3} runs  {told}")
    if not items:
        others = ", ".join(f"{name} ({number})" for name, number in memory.namespaces().items())
        print(f"nothing in namespace {memory.namespace}; there are: {others or 'none'}")
    return 0


def _show(memory: EpisodicMemory, args: Namespace) -> int:
    one = _item(memory, args.id)
    for name, value in one.to_dict().items():
        when = name in {"created", "used"}
        told = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if when else str(value)
        print(f"{name:<15}{terminal_text.line(told)}")
    return 0


def _export(memory: EpisodicMemory, args: Namespace) -> int:
    lines = (json.dumps(row) + "\n" for row in memory.export())
    if args.output is None or args.output == "-":
        sys.stdout.writelines(lines)
        return 0
    reader.write_private(args.output, lines)
    print(args.output)
    return 0


def _forget(memory: EpisodicMemory, args: Namespace) -> int:
    if bool(args.ids) == args.all:
        raise ConfigError("name the ids to forget, or --all for the whole namespace")
    for one in args.ids:
        _item(memory, one)
    print(f"{memory.forget(None if args.all else args.ids)} forgotten")
    return 0


def _item(memory: EpisodicMemory, item_id: int) -> Item:
    found = memory.get(item_id)
    if found is None:
        raise ConfigError(f"there is no item {item_id} in namespace {memory.namespace}")
    return found

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
    """Run the action on a memory's file; return the exit code."""
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
    for item in items:
        intent = terminal_text.clip(terminal_text.line(item.intent), INTENT)
        print(f"{item.id:>6}  {item.strategy:<9}  Q {item.q:.2f}  {item.runs:>3} runs  {intent}")
    if not items:
        others = ", ".join(f"{name} ({number})" for name, number in memory.namespaces().items())
        print(f"nothing in namespace {memory.namespace}; there are: {others or 'none'}")
    return 0


def _show(memory: EpisodicMemory, args: Namespace) -> int:
    item = _item(memory, args.id)
    for name, value in item.to_dict().items():
        when = name in {"created", "used"}
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if when else str(value)
        print(f"{name:<15}{terminal_text.line(text)}")
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
    for number in args.ids:
        _item(memory, number)
    print(f"{memory.forget(None if args.all else args.ids)} forgotten")
    return 0


def _item(memory: EpisodicMemory, item_id: int) -> Item:
    item = memory.get(item_id)
    if item is None:
        raise ConfigError(f"there is no item {item_id} in namespace {memory.namespace}")
    return item

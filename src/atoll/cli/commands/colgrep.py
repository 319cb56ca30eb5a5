"""`atoll colgrep`: search code by meaning, from the command line, in the index that guests use."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from atoll.agent.retrieval.retriever import colgrep, open_index

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.agent.retrieval.types import Found

NOTHING_FOUND = 1


def command(args: Namespace) -> int:
    """Print the units that fit best; return 1 without a match."""
    with open_index(args.path, args.search_server) as index:
        hits = colgrep(index, args.query, args.pattern, args.k)
    if hits.warning:
        print(f"atoll: {hits.warning}", file=sys.stderr)
    if args.json:
        print(json.dumps([dataclasses.asdict(hit) for hit in hits], indent=1))
    else:
        for hit in hits:
            print(_line(hit))
    return 0 if hits else NOTHING_FOUND


def _line(hit: Found) -> str:
    what = " ".join((hit.signature or f"{hit.kind} {hit.name}").split())
    return f"{hit.path}:{hit.start_line}-{hit.end_line}  {hit.score:.3f}  {what}"

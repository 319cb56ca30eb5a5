"""`atoll repl-server`: framed requests on stdin, framed responses on stdout."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from atoll.cli import settings
from atoll.replserver.runner import Runner
from atoll.replserver.server import Server, take_stdio
from atoll.replserver.trace import Trace

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.config import REPLConfig


def command(args: Namespace) -> int:
    """Serve until stdin ends; the exit code."""
    fields = {} if args.timeout is None else {"timeout_ms": args.timeout * 1000}
    config = settings.ring_config(args, policy=settings.policy_from(args), **fields)
    asyncio.run(_serve(args, config))
    return 0


async def _serve(args: Namespace, config: REPLConfig) -> None:
    trace = Trace(_say, debug=args.debug, contents=args.debug_contents)
    await Server(Runner(config, prefetch=args.prefetch), take_stdio(), trace).serve()


def _say(text: str) -> None:
    print(f"atoll repl-server: {text}", file=sys.stderr, flush=True)

"""`atoll repl-server`: serves framed requests on stdin; responses go to stdout."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from atoll.cli import settings
from atoll.cli.terminal.standard_streams import require_stdin
from atoll.config import ReplSettings
from atoll.hosting.pool import Pool, PoolSettings
from atoll.packages.environment import ensure
from atoll.packages.target import for_interpreter
from atoll.policy import Isolation
from atoll.replserver.runner import Runner
from atoll.replserver.server import Server, Trace, take_stdio

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.config import SandboxConfig


def command(args: Namespace) -> int:
    """Serve until stdin ends; return the exit code."""
    require_stdin()
    fields: dict[str, object] = {} if args.timeout is None else {"timeout_ms": args.timeout * 1000}
    fields.update(packages=args.packages, allow_source=args.allow_source)
    fields.update(settings.image_fields(args))
    config = settings.backend_config(args, policy=settings.policy_from(args), **fields)
    asyncio.run(_serve(args, config))
    return 0


async def _serve(args: Namespace, config: SandboxConfig) -> None:
    trace = Trace(_say, debug=args.debug, contents=args.debug_contents)
    pool = _pool(args, config)
    if pool is None:
        await Server(Runner(config), take_stdio(), trace).serve()
        return
    async with pool:
        await _warm_up(pool, config)
        await Server(Runner(config, pool=pool), take_stdio(), trace).serve()


def _pool(args: Namespace, config: SandboxConfig) -> Pool | None:
    """Return a pool of warm sandboxes; None if the options ask for another kind of sandbox."""
    stronger = config.min_isolation is not None and config.min_isolation > Isolation.JAILED
    if config.backend not in ("auto", "native") or stronger or not args.prefetch:
        return None
    if not ReplSettings.from_environment().enabled:
        return None
    pool = Pool(PoolSettings.with_more(args.preload, python=config.python))
    return pool if pool.usable else None


async def _warm_up(pool: Pool, config: SandboxConfig) -> None:
    """Warm up the smallest tier and the one in use, and say which libraries are missing.

    Packages are built now: the first request need not wait, and a failure is said at the start.
    """
    if config.packages:
        target = for_interpreter(pool.python)
        hold = await asyncio.to_thread(
            ensure, config.packages, target, allow_source=config.allow_source
        )
        pool = pool.with_packages(hold)
        hold.close()  # the pool has its own
    tiers = sorted({next(iter(pool.settings.tiers)), pool.tier_of(config)})
    _say(f"importing the libraries of warm interpreters (tiers: {', '.join(tiers)}) ...")
    await pool.warm(*tiers)
    for tier, facts in pool.stats().items():
        for missing in facts["missing"]:
            _say(f"warning: tier {tier} lacks {missing}")


def _say(text: str) -> None:
    print(f"atoll repl-server: {text}", file=sys.stderr, flush=True)

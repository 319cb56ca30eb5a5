"""`atoll mcp`: sandboxes as tools of an MCP client, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from atoll.cli import settings
from atoll.config import variable
from atoll.errors import ConfigError
from atoll.extras import hint

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from atoll.integrations.mcp_toolset import Ask


def command(args: Namespace) -> int:
    """Serve until the client closes stdin, or until Ctrl-C; return the exit code."""
    # Before the SDK does, whose handler draws tracebacks in frames.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    server = _load("mcp_server")
    made = server.make_server(
        settings.config_from(args, None, preload=args.tier),
        ask=_asking(args),
        most_sessions=args.max_sessions,
        idle_seconds=args.idle_seconds,
        approve=args.approve,
    )
    if not args.http:
        asyncio.run(made.run_stdio_async())
        return 0
    http = _load("mcp_http")
    oauth = _oauth(args, http)
    given = not oauth or variable(http.TOKEN_VARIABLE)
    tokens = http.tokens_from_environment() if given and not args.no_token else ()
    serve = http.serve_http(
        made,
        host=args.host,
        port=args.port,
        tokens=tokens,
        oauth=oauth,
        url=args.public_url or "",
        names=tuple(args.serve_as),
        on_ready=lambda url: _say(url, tokens),
    )
    asyncio.run(serve)
    return 0


def _oauth(args: Namespace, http: Any) -> Any:
    """Return the authorization server whose tokens are accepted; None without one."""
    if not args.oauth_issuer:
        return None
    if not args.oauth_keys:
        raise ConfigError("--oauth-issuer needs --oauth-keys: a JWKS file with its public keys")
    return http.OAuth(issuer=args.oauth_issuer, keys=args.oauth_keys)


def _load(name: str) -> Any:
    try:
        return import_module(f"atoll.integrations.{name}")
    except ImportError:
        raise ConfigError(f"`atoll mcp` needs the MCP SDK. {hint('mcp')}") from None


def _say(url: str, tokens: tuple[str, ...]) -> None:
    print(f"Atoll serves MCP at {url}", file=sys.stderr, flush=True)
    for token in tokens:
        print(f"  header   Authorization: Bearer {token}", file=sys.stderr, flush=True)


def _asking(args: Namespace) -> Ask | None:
    """Return what the tool `ask` does; None without a model."""
    name = args.model or variable("ATOLL_MODEL")
    if not name:
        return None
    from atoll.agent.rlm.core import RLM  # noqa: PLC0415 - it takes long to import

    async def ask(question: str, text: str, tell: Callable[[str], None]) -> str:
        steps = RLM(
            name, on_event=lambda event: tell(type(event).__name__), backend=args.backend or ""
        )
        async with steps as rlm:
            return (await rlm.completion(question, text)).text

    return ask

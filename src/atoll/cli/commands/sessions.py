"""`atoll sessions`: list, show and end the sessions of a service."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from atoll import extras
from atoll.cli.terminal.table import columns
from atoll.config import SandboxConfig
from atoll.errors import ConfigError
from atoll.text.amounts import ago_text, size_text

if TYPE_CHECKING:
    from argparse import Namespace

PAGE = 200
HEAD = ("ID", "STATE", "AGE", "IDLE", "CELLS", "MEMORY", "CPU", "NAME")


def command(args: Namespace) -> int:
    """Do what was asked; return the exit code."""
    try:
        from atoll.backends.remote import connection  # noqa: PLC0415 - it needs an extra
    except ImportError:
        raise ConfigError(f"this needs the extra `remote`. {extras.hint('remote')}") from None
    return asyncio.run(_do(args, connection))


async def _do(args: Namespace, connection: Any) -> int:
    service = connection.take(SandboxConfig(backend="remote", url=args.url))
    everybody = "/admin" if args.all_tenants else ""
    try:
        if args.action == "list":
            return _list(args, await _sessions(service, everybody))
        if args.action == "show":
            print(
                json.dumps(await service.call("GET", f"{everybody}/sessions/{args.id}"), indent=2)
            )
            return 0
        for ident in args.ids:
            await service.call("DELETE", f"{everybody}/sessions/{ident}")
            print(f"atoll: {ident} has ended", file=sys.stderr)
        return 0
    finally:
        await connection.release(service)


async def _sessions(service: Any, everybody: str) -> list[dict[str, Any]]:
    """Return every session, page by page."""
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        place = {"offset": len(items)} if everybody else {"cursor": cursor}
        page = await service.call("GET", f"{everybody}/sessions", params={"limit": PAGE, **place})
        items += page["items"]
        cursor = page.get("next_cursor") or ""
        if not page["items"] or (len(items) >= page["total"] if everybody else not cursor):
            return items


def _list(args: Namespace, items: list[dict[str, Any]]) -> int:
    if args.json:
        print(json.dumps({"sessions": items}))
    elif not items:
        print("atoll: no session is open", file=sys.stderr)
    else:
        tenants = ("TENANT",) if args.all_tenants else ()
        print(columns((*tenants, *HEAD), [_row(one, bool(tenants)) for one in items]))
    return 0


def _row(session: dict[str, Any], tenants: bool) -> tuple[str, ...]:  # noqa: FBT001 - of a table
    memory = session["usage"]["memory_bytes"]
    return (
        *((session["tenant"],) if tenants else ()),
        session["id"],
        "busy" if session["busy"] else session["state"],
        ago_text(time.time() - session["created_at"]).removesuffix(" ago"),
        ago_text(session["idle_seconds_now"]).removesuffix(" ago"),
        str(session["executions"]),
        "-" if memory is None else size_text(memory),
        f"{session['usage']['cpu_seconds']:.1f} s",
        session["name"],
    )

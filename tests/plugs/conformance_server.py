"""A server with the sample tools that MCP's conformance suite calls, behind Atoll's HTTP and tasks.

python tests/plugs/conformance_server.py
"""

from __future__ import annotations

import asyncio
import sys

from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError

from atoll.integrations.mcp_http import serve_http
from atoll.integrations.mcp_tasks import Tasks

tasks = Tasks(["slow_compute", "failing_job", "protocol_error_job"], after_seconds=0)
server = MCPServer("sample", extensions=[tasks], log_level="ERROR")


@server.tool()
def greet(name: str) -> str:
    """Greet, at once."""
    return f"Hello, {name}!"


@server.tool()
async def slow_compute(seconds: float, label: str = "") -> str:
    """Take long."""
    await asyncio.sleep(seconds)
    return f"done {label}"


@server.tool()
async def failing_job() -> str:
    """Fail as a tool does."""
    await asyncio.sleep(0.2)
    raise ValueError("it failed")


@server.tool()
async def protocol_error_job() -> str:
    """Fail as a server does."""
    await asyncio.sleep(0.2)
    raise MCPError(-32603, "broken")


if __name__ == "__main__":
    asyncio.run(serve_http(server, on_ready=lambda url: print(url, file=sys.stderr, flush=True)))

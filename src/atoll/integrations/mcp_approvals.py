"""Tools of the MCP server that run only after the client's user has approved the call.

The user is asked by elicitation: newer clients get an InputRequiredResult and call again with the
answer, older ones get a request while their call waits.

SECURITY: an approval is for one call with the very arguments that were shown. The SDK seals the
state that goes through the client, so that a client cannot write an approval for another call. A
client that cannot ask its user is refused.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from atoll.extras import hint

try:
    from mcp.server.elicitation import AcceptedElicitation, elicit_with_validation
    from mcp.server.extension import Extension
    from mcp_types import (
        CallToolResult,
        ElicitRequest,
        ElicitRequestFormParams,
        ElicitResult,
        InputRequiredResult,
        TextContent,
    )
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
    from pydantic import BaseModel, Field, ValidationError
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_approvals needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcp.server.context import CallNext, HandlerResult
    from mcp_types import CallToolRequestParams

    from atoll.integrations.mcp_requests import Request

KEY = "approve"
SHOWN_CHARACTERS = 2000


class Answer(BaseModel):
    """What the user is asked for."""

    approve: bool = Field(description="Run it?")


class Approvals(Extension):
    """Asks the user before the calls of some tools."""

    identifier = "dev.atoll/approvals"

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def settings(self) -> dict[str, Any]:
        """Name the tools that need an approval."""
        return {"tools": sorted(self._names)}

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        """Ask, and run the call if the user approves."""
        if params.name not in self._names:
            return await call_next(ctx)
        known = ctx.session.client_capabilities
        if known is None or known.elicitation is None:
            return _refused(f"{params.name} needs its user's approval, and this client cannot ask")
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            approved = await self._ask(params, ctx)
        else:
            answer = (params.input_responses or {}).get(KEY)
            if answer is None or params.request_state != _digest(params):
                return self._question(params)
            approved = isinstance(answer, ElicitResult) and _approves(answer)
        if not approved:
            return _refused(f"the user did not approve this call of {params.name}")
        return await call_next(ctx)

    async def _ask(self, params: CallToolRequestParams, ctx: Request) -> bool:
        answer = await elicit_with_validation(
            ctx.session, _shown(params), Answer, related_request_id=ctx.request_id
        )
        return isinstance(answer, AcceptedElicitation) and answer.data.approve

    def _question(self, params: CallToolRequestParams) -> InputRequiredResult:
        asked = ElicitRequestFormParams(
            message=_shown(params), requested_schema=Answer.model_json_schema()
        )
        return InputRequiredResult(
            input_requests={KEY: ElicitRequest(params=asked)}, request_state=_digest(params)
        )


def _approves(answer: ElicitResult) -> bool:
    if answer.action != "accept":
        return False
    try:
        return Answer.model_validate(answer.content).approve
    except ValidationError:
        return False


def _digest(params: CallToolRequestParams) -> str:
    call = json.dumps([params.name, params.arguments], sort_keys=True)
    return hashlib.sha256(call.encode()).hexdigest()


def _shown(params: CallToolRequestParams) -> str:
    lines = [f"{name}: {value}" for name, value in (params.arguments or {}).items()]
    text = "\n".join([f"{params.name} is about to run:", *lines])
    cut = "" if len(text) <= SHOWN_CHARACTERS else f"\n... {len(text):,} characters in all"
    return text[:SHOWN_CHARACTERS] + cut


def _refused(why: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=why)], is_error=True)

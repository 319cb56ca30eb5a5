"""`atoll run`: one program in a fresh sandbox, its output passed on, its exit code ours."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from atoll import aio
from atoll.cli import cells, settings, streams
from atoll.guest import values

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.config import REPLConfig
    from atoll.types import Display, SandboxResult

BROKEN_PIPE = 141


def command(args: Namespace) -> int:
    """Run what the arguments say; the exit code."""
    streams.accept_any_text()
    code = settings.read_code(args)
    output = streams.GuestOutput()
    config = settings.config_from(args, None if args.json else output)
    result = asyncio.run(_run(config, code, output))
    if args.json:
        print(json.dumps(as_json(result)))
        return cells.exit_code(result)
    return _tell(result, output)


def as_json(result: SandboxResult) -> dict[str, Any]:
    """A result as JSON can hold it; a value that JSON has no form for is tagged with its type."""
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    level = result.isolation
    return {
        "success": result.success,
        **fields,
        "value": plain(result.value),
        "displays": [_display(one) for one in result.displays],
        "artifacts": [dataclasses.asdict(one) for one in result.artifacts],
        "state": plain(result.state),
        "isolation": None if level is None else level.name.lower(),
    }


def plain(value: Any) -> Any:
    """A value as JSON can hold it; one that JSON has no form for is tagged with its type."""
    if isinstance(value, values.Opaque):
        return {values.TAG: "object", "type": value.type_name, "v": value.repr}
    return values.encode(value)


async def _run(config: REPLConfig, code: str, output: streams.GuestOutput) -> SandboxResult:
    async with aio.create_sandbox(config) as box:
        return await cells.run_cell(box, code, output)


def _tell(result: SandboxResult, output: streams.GuestOutput) -> int:
    if isinstance(output.failure, BrokenPipeError):
        return BROKEN_PIPE
    if output.failure is not None:
        cells.complain(f"the output could not be written: {output.failure.strerror}")
        return 1
    if text := cells.explain(result):
        cells.complain(text)
    return cells.exit_code(result)


def _display(one: Display) -> dict[str, str]:
    return {"media_type": one.media_type, "data": base64.b64encode(one.data).decode("ascii")}

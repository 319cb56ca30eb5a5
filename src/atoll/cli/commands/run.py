"""`atoll run`: one program in a new sandbox; its output and exit code become ours."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll import aio
from atoll.cli import settings
from atoll.cli.commands import cells
from atoll.cli.commands.cells import FigureFolder
from atoll.cli.terminal import streams
from atoll.cli.terminal.standard_streams import is_piped
from atoll.errors import ConfigError
from atoll.guest.shared import values
from atoll.policy import Capability
from atoll.types import Outcome

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import SandboxResult

BROKEN_PIPE = 141
AT_EXIT = """import atexit as _atexit, sys as _sys
'threading' in _sys.modules and _sys.modules['threading']._shutdown()
_atexit._run_exitfuncs()
"""
"""What Python does at the end of a program: it waits for threads, and calls what atexit has."""
_CAME_TO_ITS_END = (Outcome.OK, Outcome.ERROR, Outcome.EXITED)


def command(args: Namespace) -> int:
    """Run the program that the arguments name; return the exit code."""
    streams.accept_any_text()
    code = settings.read_code(args)
    output = streams.GuestOutput()
    folder = FigureFolder(args.figures)
    config = settings.config_from(args, None if args.json else output, **inputs(args))
    if args.commit and not args.image:
        raise ConfigError("--commit keeps a layer on top of an image: add --image")
    result = asyncio.run(_run(config, code, output, args.commit))
    if args.figures or not args.json:  # the JSON has them
        folder.save(result.displays)
    if args.json:
        print(json.dumps(as_json(result)))
        return cells.exit_code(result)
    return _report(result, output, args.file or "")


def inputs(args: Namespace) -> dict[str, object]:
    """Return sys.argv of the program, and its stdin if we have one that nothing else reads."""
    name = "-c" if args.code is not None else args.file
    taken = settings.STDIN in (args.file, args.context)
    return {
        "argv": [name, *args.args],
        "on_stdin": streams.PipedInput().read if is_piped() and not taken else None,
    }


def as_json(result: SandboxResult) -> dict[str, object]:
    """Return a result as JSON can hold it; a value without a JSON form is tagged with its type."""
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    level = result.isolation
    return {
        "success": result.success,
        **fields,
        "value": plain(result.value),
        "displays": [
            {
                "media_type": display.media_type,
                "data": base64.b64encode(display.data).decode("ascii"),
            }
            for display in result.displays
        ],
        "artifacts": [dataclasses.asdict(artifact) for artifact in result.artifacts],
        "error_args": [plain(arg) for arg in result.error_args],
        "network": None if result.network is None else dataclasses.asdict(result.network),
        "state": plain(result.state),
        "isolation": None if level is None else str(level),
    }


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; one without a JSON form is tagged with its type."""
    if isinstance(value, values.Opaque):
        return {values.TAG: "object", "type": value.type_name, "v": value.repr}
    return values.encode(value)


async def _run(
    config: SandboxConfig, code: str, output: streams.GuestOutput, target: str | None
) -> SandboxResult:
    """Run the program to its end; if it ends well, `target` is the image to keep it as."""
    async with aio.create_sandbox(config) as box:
        cells.warn_of_memory(box)
        result = await cells.run_cell(box, code, output)
        if result.kind in _CAME_TO_ITS_END and not result.state_lost and _has_end(box, config):
            left = max(1.0, config.timeout_ms - result.duration_ms)
            end = await cells.run_cell(box, AT_EXIT, output, timeout_ms=left)
            result = _joined(result, end)
        if target and result.success:
            made = await box.commit(target)
            cells.complain(f"{target} is {made.digest}")
        elif target:
            cells.complain(f"{target} was not made: the program failed")
        return result


def _has_end(box: BaseSandbox, config: SandboxConfig) -> bool:
    """Return whether the program may have threads, and Python's own names are not refused."""
    wanted = {Capability.THREADS, Capability.IMPORTS}
    return wanted <= box.capabilities and config.guard is None


def _joined(result: SandboxResult, end: SandboxResult) -> SandboxResult:
    """Return the program's result with what it printed at its end; a bad end is the result's."""
    said = end if result.success and not end.success else result
    return dataclasses.replace(
        said,
        stdout=result.stdout + end.stdout,
        stderr=result.stderr + end.stderr,
        displays=result.displays + end.displays,
        truncated=result.truncated or end.truncated,
    )


def _report(result: SandboxResult, output: streams.GuestOutput, script: str) -> int:
    if isinstance(output.failure, BrokenPipeError):
        return BROKEN_PIPE
    if output.failure is not None:
        cells.complain(f"cannot write the output: {output.failure.strerror}")
        return 1
    if text := cells.explain(result):
        cells.complain(text)
    if hint := _module_beside(result, script):
        cells.complain(hint)
    return cells.exit_code(result)


def _module_beside(result: SandboxResult, script: str) -> str:
    """Say how the program imports a module that lies in its own folder, if that has failed."""
    if result.error_type != "ModuleNotFoundError" or not script.endswith(".py"):
        return ""
    folder, [_, name, *_] = Path(script).parent, [*str(result.error).split("'"), "", ""]
    module = folder / name.partition(".")[0]
    if not name or not (module.is_dir() or module.with_suffix(".py").is_file()):
        return ""
    where = f"{module.name} is in the folder of {script}, which the sandbox does not see"
    return f"{where}: add --files {folder} (the program may write to it)"

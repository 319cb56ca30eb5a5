"""Answers to the requests of a kernel's clients: cells, completion, inspection, history."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.sandbox.base import check_code
from atoll.service.dialects.jupyter import cell_messages
from atoll.service.dialects.jupyter.cell_messages import CellResult, Printed
from atoll.service.dialects.jupyter.messages import VERSION
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.service.access.keys import Principal
    from atoll.service.core.executions import Execution
    from atoll.service.dialects.jupyter.kernel import Kernel
    from atoll.service.dialects.jupyter.messages import KernelMessage

    Answer = Callable[[Kernel, Principal, KernelMessage], Awaitable[dict[str, Any]]]

MOST_EXPRESSIONS = 64


async def execute(kernel: Kernel, principal: Principal, message: KernelMessage) -> dict[str, Any]:
    """Run a cell and publish what it shows, as it comes."""
    asked = message.content
    code, silent = _text(asked, "code"), bool(asked.get("silent"))
    check_code(code)
    if asked.get("store_history", True) and not silent:
        kernel.count += 1
        kernel.past.add(kernel.count, code)
    told = {"code": code, "execution_count": kernel.count}
    if not silent:
        await kernel.publish(message, "execute_input", told)
    execution = _begin(kernel, principal, code, None, keep=not silent)
    printed = Printed()
    result = await _follow(kernel, message, execution, printed, silent=silent)
    if not result.success:
        return await _failed(kernel, message, result.failure(printed.trace))
    shown = result.messages(kernel.count)
    if printed.trace:
        shown.insert(0, ("stream", {"name": "stderr", "text": printed.trace}))
    for kind, content in [] if silent else shown:
        await kernel.publish(message, kind, content)
    found = await _expressions(kernel, principal, asked.get("user_expressions"))
    return {**_counted(kernel), "payload": [], "user_expressions": found}


async def complete(kernel: Kernel, principal: Principal, message: KernelMessage) -> dict[str, Any]:
    """Complete a name by what exists in the session."""
    code, cursor = _text(message.content, "code"), _cursor(message.content)
    word, asking = cell_messages.completing(code, cursor)
    return cell_messages.completed(word, cursor, await _ask(kernel, principal, asking))


async def inspect(kernel: Kernel, principal: Principal, message: KernelMessage) -> dict[str, Any]:
    """Describe the name at the cursor."""
    asking = cell_messages.inspecting(_text(message.content, "code"), _cursor(message.content))
    return cell_messages.inspected(await _ask(kernel, principal, asking))


async def is_complete(_kernel: Kernel, _who: Principal, message: KernelMessage) -> dict[str, Any]:
    """Say whether code can be run as it is."""
    return cell_messages.is_complete(_text(message.content, "code"))


async def history(kernel: Kernel, _who: Principal, message: KernelMessage) -> dict[str, Any]:
    """Return earlier cells."""
    return kernel.past.find(message.content)


async def info(kernel: Kernel, _who: Principal, _message: KernelMessage) -> dict[str, Any]:
    """Say what the kernel is, and what isolation its cells have."""
    isolation = kernel.hosted.describe()["isolation"]
    return {
        "status": "ok",
        "protocol_version": VERSION,
        "implementation": "atoll",
        "implementation_version": __version__,
        "language_info": cell_messages.LANGUAGE_INFO,
        "banner": f"Atoll {__version__}: Python in a sandbox, isolation: {isolation}",
        "help_links": [],
        "debugger": False,
    }


async def comms(_kernel: Kernel, _who: Principal, _message: KernelMessage) -> dict[str, Any]:
    """Say that there are no comms, which widgets would need."""
    return {"status": "ok", "comms": {}}


async def interrupt(kernel: Kernel, _who: Principal, _message: KernelMessage) -> dict[str, Any]:
    """Interrupt the cell that runs."""
    await kernel.interrupt()
    return {"status": "ok"}


async def shutdown(kernel: Kernel, _who: Principal, message: KernelMessage) -> dict[str, Any]:
    """Restart the kernel, or end it."""
    again = bool(message.content.get("restart"))
    if again:
        await kernel.restart()
    else:
        kernel.service.spawn(kernel.service.gateway.end(kernel))
    return {"status": "ok", "restart": again}


async def refused(kernel: Kernel, message: KernelMessage, problem: Problem) -> dict[str, Any]:
    """Return the answer to a request that cannot be served; a cell's is published too."""
    content = {"ename": problem.code, "evalue": problem.detail, "traceback": [problem.detail]}
    if message.kind == "execute_request":
        return await _failed(kernel, message, content)
    return {"status": "error", **content}


ANSWERS: dict[str, Answer] = {
    "execute_request": execute,
    "complete_request": complete,
    "inspect_request": inspect,
    "is_complete_request": is_complete,
    "history_request": history,
    "kernel_info_request": info,
    "comm_info_request": comms,
    "interrupt_request": interrupt,
    "shutdown_request": shutdown,
}


def _begin(
    kernel: Kernel, principal: Principal, code: str, timeout_ms: float | None, *, keep: bool
) -> Execution:
    """Start code in the session, under the limits that all executions have."""
    service, hosted = kernel.service, kernel.hosted
    execution = service.executions.new(principal, hosted.id)
    if keep:
        hosted.history.add(execution, "execute", code)
    work = service.run_in_session(execution, hosted, code, verb="execute", timeout_ms=timeout_ms)
    service.begin(execution, work)
    return execution


async def _follow(
    kernel: Kernel, message: KernelMessage, execution: Execution, printed: Printed, *, silent: bool
) -> CellResult:
    """Publish what an execution prints until it ends; return how it did."""
    async for events in execution.events(0, kernel.service.settings.keepalive_seconds):
        for _, kind, line in events:
            if kind not in ("stdout", "stderr", "dropped"):
                continue
            found = json.loads(line)
            text = found.get("text") or f"[{found.get('events')} pieces of output were dropped]\n"
            stream = "stderr" if kind == "dropped" else kind
            if (text := printed.hear(stream, text)) and not silent:
                await kernel.publish(message, "stream", {"name": stream, "text": text})
    result = _result(execution)
    if result.kind in ("crashed", "broken"):
        await kernel.publish(message, "status", {"execution_state": "restarting"})
    return result


def _result(execution: Execution) -> CellResult:
    found = json.loads(execution.body)
    if execution.status >= 400:
        name = found.get("class") or found["code"]
        return CellResult(
            success=False, kind=found["code"], error_type=name, error=found["detail"],
            value_repr=None, is_scalar=False, displays=(),
        )  # fmt: skip
    value = found["value"]
    return CellResult(
        success=found["success"],
        kind=found["kind"],
        error_type=found["error_type"],
        error=found["error"],
        value_repr=None if value is None else found["value_repr"],
        is_scalar=isinstance(value, str | int | float),
        displays=execution.displays,
    )


async def _ask(kernel: Kernel, principal: Principal, code: str) -> str:
    """Run code that is not the user's, and return what it prints; "" if it fails."""
    if not code:
        return ""
    execution = _begin(kernel, principal, code, cell_messages.ASK_MS, keep=False)
    await execution.wait()
    found = json.loads(execution.body)
    return str(found["stdout"])[:64_000] if found.get("success") else ""


async def _expressions(kernel: Kernel, principal: Principal, wanted: Any) -> dict[str, Any]:
    if not isinstance(wanted, dict):
        return {}
    found = {}
    for name, code in list(wanted.items())[:MOST_EXPRESSIONS]:
        check_code(str(code))
        execution = _begin(kernel, principal, str(code), None, keep=False)
        await execution.wait()
        found[name] = _result(execution).expression()
    return found


async def _failed(
    kernel: Kernel, message: KernelMessage, content: dict[str, Any]
) -> dict[str, Any]:
    if not message.content.get("silent"):
        await kernel.publish(message, "error", content)
    return {**_counted(kernel), **content, "status": "error"}


def _counted(kernel: Kernel) -> dict[str, Any]:
    return {"status": "ok", "execution_count": kernel.count}


def _text(asked: dict[str, Any], name: str) -> str:
    found = asked.get(name, "")
    if not isinstance(found, str):
        raise Problem(400, "invalid", f"{name} is not a text")
    return found


def _cursor(asked: dict[str, Any]) -> int:
    length = len(_text(asked, "code"))
    found = asked.get("cursor_pos")
    return min(max(found, 0), length) if isinstance(found, int) else length

"""Answers to the requests of a kernel's clients: cells, completion, inspection, history."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.sandbox.base import check_code
from atoll.service.core.work import CellRequest, RunResult
from atoll.service.dialects.jupyter import cell_messages
from atoll.service.dialects.jupyter.cell_messages import CellResult, Content, Printed
from atoll.service.dialects.jupyter.messages import VERSION
from atoll.service.http.problems import Problem, ProblemInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.service.access.keys import Principal
    from atoll.service.core.executions import Execution
    from atoll.service.dialects.jupyter.kernel import Kernel
    from atoll.service.dialects.jupyter.messages import KernelMessage

    Answer = Callable[[Kernel, Principal, KernelMessage], Awaitable[Content]]

MAX_EXPRESSIONS = 64


async def execute(kernel: Kernel, principal: Principal, message: KernelMessage) -> Content:
    """Run a cell and publish what it shows, as it comes."""
    asked = message.content
    code, silent = _text(asked, "code"), bool(asked.get("silent"))
    check_code(code)
    if asked.get("store_history", True) and not silent:
        kernel.count += 1
        kernel.past.add(kernel.count, code)
    if not silent:
        shown_code = {"code": code, "execution_count": kernel.count}
        await kernel.publish(message, "execute_input", shown_code)
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
    expressions = await _expressions(kernel, principal, asked.get("user_expressions"))
    return {**_counted(kernel), "payload": [], "user_expressions": expressions}


async def complete(kernel: Kernel, principal: Principal, message: KernelMessage) -> Content:
    """Complete a name by what exists in the session."""
    code, cursor = _text(message.content, "code"), _cursor(message.content)
    word, asking = cell_messages.completing(code, cursor)
    return cell_messages.completed(word, cursor, await _ask(kernel, principal, asking))


async def inspect(kernel: Kernel, principal: Principal, message: KernelMessage) -> Content:
    """Describe the name at the cursor."""
    asking = cell_messages.inspecting(_text(message.content, "code"), _cursor(message.content))
    return cell_messages.inspected(await _ask(kernel, principal, asking))


async def is_complete(_kernel: Kernel, _who: Principal, message: KernelMessage) -> Content:
    """Say whether code can be run as it is."""
    return cell_messages.is_complete(_text(message.content, "code"))


async def history(kernel: Kernel, _who: Principal, message: KernelMessage) -> Content:
    """Return earlier cells."""
    return kernel.past.find(message.content)


async def info(kernel: Kernel, _who: Principal, _message: KernelMessage) -> Content:
    """Say what the kernel is, and what isolation its cells have."""
    isolation = kernel.hosted.box_facts.isolation
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


async def comms(_kernel: Kernel, _who: Principal, _message: KernelMessage) -> Content:
    """Say that there are no comms, which widgets would need."""
    return {"status": "ok", "comms": {}}


async def interrupt(kernel: Kernel, _who: Principal, _message: KernelMessage) -> Content:
    """Interrupt the cell that runs."""
    await kernel.interrupt()
    return {"status": "ok"}


async def shutdown(kernel: Kernel, _who: Principal, message: KernelMessage) -> Content:
    """Restart the kernel, or end it."""
    again = bool(message.content.get("restart"))
    if again:
        await kernel.restart()
    else:
        kernel.service.spawn(kernel.service.gateway.end(kernel))
    return {"status": "ok", "restart": again}


async def refused(kernel: Kernel, message: KernelMessage, problem: Problem) -> Content:
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
    request = CellRequest(
        hosted=kernel.hosted, text=code, code=code, timeout_ms=timeout_ms, kept=keep
    )
    return kernel.service.start(principal, request)


async def _follow(
    kernel: Kernel, message: KernelMessage, execution: Execution, printed: Printed, *, silent: bool
) -> CellResult:
    """Publish what an execution prints until it ends; return how it did."""
    async for events in execution.events(0, kernel.service.settings.keepalive_seconds):
        for _, kind, line in events:
            if kind not in ("stdout", "stderr", "dropped"):
                continue
            reply = json.loads(line)
            text = reply.get("text") or f"[{reply.get('events')} pieces of output were dropped]\n"
            stream = "stderr" if kind == "dropped" else kind
            if (text := printed.hear(stream, text)) and not silent:
                await kernel.publish(message, "stream", {"name": stream, "text": text})
    result = _result(execution)
    if result.kind in ("crashed", "broken"):
        await kernel.publish(message, "status", {"execution_state": "restarting"})
    return result


def _result(execution: Execution) -> CellResult:
    ended = execution.outcome()
    if isinstance(ended, ProblemInfo):
        return CellResult(
            success=False,
            kind=ended.code,
            error_type=ended.error_class or ended.code,
            error=ended.detail,
        )
    assert isinstance(ended, RunResult)
    return CellResult(
        success=ended.success,
        kind=ended.kind,
        error_type=ended.error_type,
        error=ended.error,
        value_repr=None if ended.value is None else ended.value_repr,
        is_scalar=isinstance(ended.value, str | int | float),
        displays=execution.displays,
    )


async def _ask(kernel: Kernel, principal: Principal, code: str) -> str:
    """Run code that is not the user's, and return what it prints; "" if it fails."""
    if not code:
        return ""
    execution = _begin(kernel, principal, code, cell_messages.ASK_MS, keep=False)
    await execution.wait()
    ended = execution.outcome()
    return ended.stdout[:64_000] if isinstance(ended, RunResult) and ended.success else ""


async def _expressions(kernel: Kernel, principal: Principal, wanted: Any) -> Content:
    if not isinstance(wanted, dict):
        return {}
    result = {}
    for name, code in list(wanted.items())[:MAX_EXPRESSIONS]:
        check_code(str(code))
        execution = _begin(kernel, principal, str(code), None, keep=False)
        await execution.wait()
        result[name] = _result(execution).expression()
    return result


async def _failed(kernel: Kernel, message: KernelMessage, content: Content) -> Content:
    if not message.content.get("silent"):
        await kernel.publish(message, "error", content)
    return {**_counted(kernel), **content, "status": "error"}


def _counted(kernel: Kernel) -> Content:
    return {"status": "ok", "execution_count": kernel.count}


def _text(asked: Content, name: str) -> str:
    result = asked.get(name, "")
    if not isinstance(result, str):
        raise Problem(400, "invalid", f"{name} is not a text")
    return result


def _cursor(asked: Content) -> int:
    length = len(_text(asked, "code"))
    result = asked.get("cursor_pos")
    return min(max(result, 0), length) if isinstance(result, int) else length

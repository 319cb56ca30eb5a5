"""A real Jupyter kernel on this interpreter, used as a client does, to compare sessions with."""

from __future__ import annotations

import contextlib
import os
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.rows import UnavailableError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterator

NEEDED = ("ipykernel", "jupyter_client")
WAIT_SECONDS = 60


@contextlib.contextmanager
def blocking() -> Iterator[Callable[[str], None]]:
    """Yield a function that runs a cell and returns after the reply, when the kernel is idle."""
    _check()
    from jupyter_client.manager import start_new_kernel  # noqa: PLC0415 - an extra

    manager, client = start_new_kernel(startup_timeout=WAIT_SECONDS, **_quietly())
    try:
        yield lambda code: _run(client, code)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@contextlib.contextmanager
def asynchronous(runner: asyncio.Runner) -> Iterator[Callable[[str], Awaitable[None]]]:
    """Yield the same function for the runner's event loop."""
    _check()
    from jupyter_client.manager import start_new_async_kernel  # noqa: PLC0415 - an extra

    manager, client = runner.run(start_new_async_kernel(startup_timeout=WAIT_SECONDS, **_quietly()))
    try:
        yield lambda code: _run_async(client, code)
    finally:
        client.stop_channels()
        runner.run(_shut_down(manager))


async def _shut_down(manager: Any) -> None:
    await manager.shutdown_kernel(now=True)


def _check() -> None:
    for name in NEEDED:
        if find_spec(name) is None:
            raise UnavailableError(f"{name} is not installed")


def _quietly() -> dict[str, Any]:
    return {
        "env": {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }


def _run(client: Any, code: str) -> None:
    ident = client.execute(code)
    while not _is_idle(client.get_iopub_msg(timeout=WAIT_SECONDS), ident):
        pass
    while not _is_reply(client.get_shell_msg(timeout=WAIT_SECONDS), ident):
        pass


async def _run_async(client: Any, code: str) -> None:
    ident = client.execute(code)
    while not _is_idle(await client.get_iopub_msg(timeout=WAIT_SECONDS), ident):
        pass
    while not _is_reply(await client.get_shell_msg(timeout=WAIT_SECONDS), ident):
        pass


def _is_idle(message: dict[str, Any], ident: str) -> bool:
    state: str | None = message["content"].get("execution_state")
    return message["parent_header"].get("msg_id") == ident and state == "idle"


def _is_reply(message: dict[str, Any], ident: str) -> bool:
    ours: bool = message["parent_header"].get("msg_id") == ident
    assert not ours or message["content"]["status"] == "ok", message["content"]
    return ours

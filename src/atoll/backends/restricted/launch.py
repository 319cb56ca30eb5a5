"""Starts a worker: a plain child process with pipes, and the handshake."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from atoll.backends.restricted.process import PlainProcess, start
from atoll.errors import SandboxStartError
from atoll.launch.guest_handle import GuestHandle, pipes
from atoll.launch.handshake import handshake
from atoll.sandbox.channel import HostChannel

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.jail.supervisor.client import Lease
    from atoll.launch.handshake import RunningGuest
    from atoll.sandbox.context import Context

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from atoll.backends.restricted.worker import main; sys.path.remove(sys.argv[1]); "
    "main(sys.argv[2])"
)
_ROOT = str(Path(__file__).resolve().parents[3])
_ENVIRONMENT = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_KEPT = ("LD_LIBRARY_PATH",)


async def launch(config: SandboxConfig, context: Any, shared: Context | None) -> RunningGuest:
    """Return a worker that has answered the handshake; SandboxStartError if it fails to start."""
    handle = _start_worker(config, shared)
    return await handshake(handle, config, context, shared)


def _start_worker(config: SandboxConfig, shared: Context | None) -> GuestHandle:
    with pipes(5) as (requests, answers, output, errors, lifeline):
        passed = [output[1], lifeline[0], *([shared.fd] if shared else [])]
        settings = _settings(config, shared, output[1], lifeline[0])
        argv = [sys.executable, "-I", "-X", "utf8", "-c", _BOOT, _ROOT, settings]
        try:
            child = start(argv, (requests[0], answers[1], errors[1]), passed, _environment())
        except OSError as exc:
            raise SandboxStartError("start", f"{sys.executable}: {exc.strerror}") from exc
        for fd in (requests[0], answers[1], errors[1], output[1], lifeline[0]):
            os.close(fd)
    # A lease's other methods are for files and states, which this backend does not support.
    lease = cast("Lease", PlainProcess(child, lifeline[1]))
    return GuestHandle(lease, HostChannel(answers[0], requests[1]), [output[0], errors[0]])


def _settings(config: SandboxConfig, shared: Context | None, output: int, lifeline: int) -> str:
    policy = config.policy
    return json.dumps(
        {
            "output": output,
            "lifeline": lifeline,
            "context_fd": shared.fd if shared else None,
            "memory": policy.memory_bytes,
            "open_files": max(policy.max_open_files, 128),
            "guard": config.guard,
            "walls": True,
        }
    )


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return _ENVIRONMENT | kept

"""The async face: `async with atoll.aio.create_sandbox() as box: ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from atoll.factory import Opening, merge
from atoll.shell.local import LocalSandbox
from atoll.shell.sandbox import ShellSandbox

if TYPE_CHECKING:
    from atoll.config import REPLConfig
    from atoll.factory import Options

__all__ = ["LocalSandbox", "ShellSandbox", "create_sandbox"]


def create_sandbox(config: REPLConfig | None = None, **options: Unpack[Options]) -> Opening:
    """A sandbox for async code: `await` it, or use it in `async with`."""
    return Opening(merge(config, options))

"""One blocking execution in a sandbox of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.backends.wasm.sandbox import PythonSandbox
from atoll.config import SandboxConfig
from atoll.portal import Portal

if TYPE_CHECKING:
    from atoll.types import SandboxResult


def run_untrusted_python(code: str, **options: Any) -> SandboxResult:
    """Run `code` in a fresh WebAssembly sandbox; `options` are fields of SandboxConfig."""
    config = SandboxConfig(**{**options, "backend": PythonSandbox.backend})
    result: SandboxResult = Portal.shared().run(_run(code, config))
    return result


async def _run(code: str, config: SandboxConfig) -> SandboxResult:
    async with PythonSandbox(config) as box:
        await box.initialize(config.context)
        return await box.execute(code)

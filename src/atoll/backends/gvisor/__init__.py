"""The gvisor backend: CPython in gVisor, a kernel of its own that runs as a jailed process."""

from atoll.backends.gvisor.sandbox import GvisorSandbox

__all__ = ["GvisorSandbox"]

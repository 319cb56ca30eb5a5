"""The daemon backend: sandboxes that a long-lived process of the same user holds."""

from atoll.backends.daemon.sandbox import DaemonClientSandbox

__all__ = ["DaemonClientSandbox"]

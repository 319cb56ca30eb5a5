"""The remote backend: sandboxes of `atoll serve`, on this machine or another."""

from atoll.backends.remote.sandbox import RemoteSandbox

__all__ = ["RemoteSandbox"]

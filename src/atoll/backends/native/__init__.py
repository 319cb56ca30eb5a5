"""The native backend: CPython in a jailed process of its own."""

from atoll.backends.native.sandbox import NativePythonSandbox

__all__ = ["NativePythonSandbox"]

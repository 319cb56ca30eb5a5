"""The pyodide backend: CPython as WebAssembly, inside Deno."""

from atoll.backends.pyodide.sandbox import DirectPyodideSandbox, PyodideSandbox

__all__ = ["DirectPyodideSandbox", "PyodideSandbox"]

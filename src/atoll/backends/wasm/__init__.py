"""The WASM backend: CPython compiled to WebAssembly, run by wasmtime in a jailed worker process."""

from atoll.backends.wasm.sandbox import PythonSandbox

__all__ = ["PythonSandbox"]

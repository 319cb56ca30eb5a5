"""The guest runtime: the one payload that runs inside every backend.

Standard library only, CPython 3.8 and newer, WASI and Emscripten. It imports nothing else of
atoll; the host imports `rpc` and `values`, so that both ends speak one codec, and the caps of
`display`.
"""

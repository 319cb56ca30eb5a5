"""Compiles and loads the component. This file is part of the cache's key."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wasmtime import Engine
    from wasmtime.component import Component

STACK_BYTES = 48 << 20
"""Python's own limit is far below this; the worker's stack is larger (see launch.WORKER_STACK)."""
SETTINGS = "fuel"


def make() -> Engine:
    """Return an engine that counts fuel."""
    from wasmtime import Config, Engine, _ffi  # noqa: PLC0415 - an extra

    config = Config()
    config.wasm_component_model = True
    config.consume_fuel = True
    _ffi.wasmtime_config_async_stack_size_set(config.ptr(), STACK_BYTES)  # at least the wasm stack
    config.max_wasm_stack = STACK_BYTES
    return Engine(config)


def compile_file(path: str, target: str) -> None:
    """Compile a component to machine code for this wasmtime and these settings."""
    from wasmtime.component import Component  # noqa: PLC0415

    with Component.from_file(make(), path) as component, open(target, "wb") as file:
        file.write(component.serialize())


def load(engine: Engine, path: str) -> Component:
    """Load a compiled component. SECURITY: it is trusted like code; the cache is private."""
    from wasmtime.component import Component  # noqa: PLC0415

    return Component.deserialize_file(engine, path)


def runtime_version() -> str:
    """Return the version of wasmtime."""
    return version("wasmtime")


if __name__ == "__main__":
    compile_file(*sys.argv[1:])

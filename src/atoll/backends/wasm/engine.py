"""How the component is compiled and loaded. What stands here is part of the cache's key."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wasmtime import Engine
    from wasmtime.component import Component

STACK_BYTES = 48 << 20
"""The guest's Python stops itself long before; the worker has more (see launch.WORKER_STACK)."""
SETTINGS = "fuel"


def make() -> Engine:
    """An engine that counts fuel."""
    from wasmtime import Config, Engine, _ffi  # noqa: PLC0415 - an extra

    config = Config()
    config.wasm_component_model = True
    config.consume_fuel = True
    _ffi.wasmtime_config_async_stack_size_set(config.ptr(), STACK_BYTES)  # no less may this be
    config.max_wasm_stack = STACK_BYTES
    return Engine(config)


def compile_file(path: str, target: str) -> None:
    """Make machine code of a component, for this wasmtime and these settings alone."""
    from wasmtime.component import Component  # noqa: PLC0415

    with Component.from_file(make(), path) as component, open(target, "wb") as file:
        file.write(component.serialize())


def load(engine: Engine, path: str) -> Component:
    """A compiled component. SECURITY: it is trusted as code is; the cache folder is private."""
    from wasmtime.component import Component  # noqa: PLC0415

    return Component.deserialize_file(engine, path)


def runtime_version() -> str:
    """Of wasmtime."""
    return version("wasmtime")


if __name__ == "__main__":
    compile_file(*sys.argv[1:])

"""One instance of the component: its store, its folders, and the functions it calls back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wasmtime import Engine
    from wasmtime.component import Component

    Callbacks = Mapping[str, Callable[..., Any]]
    """The functions that the component imports, by name; see component/sandbox.wit."""

_NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of the worker that the guest sees."""

    source: str
    target: str
    writable: bool = False


class Instance:
    """Handles requests. After a trap it is unusable; without `close` its memory leaks."""

    def __init__(
        self, engine: Engine, component: Component, callbacks: Callbacks, places: Sequence[Place]
    ) -> None:
        from wasmtime import Store, WasiConfig  # noqa: PLC0415 - an extra

        self._engine = engine
        self._store = Store(engine)
        self._store.set_fuel(_NEVER)
        self._store.set_wasi(_wasi(WasiConfig(), places))
        self._handle = self._link(component, callbacks)

    def limit_memory(self, size: int) -> None:
        """Limit the size of the linear memory."""
        self._store.set_limits(memory_size=size)

    def handle(self, line: str, fuel: int) -> str:
        """Return the answer to a request; raises wasmtime's error if the guest traps."""
        self._store.set_fuel(fuel)
        answer: str = self._handle(self._store, line)
        self._handle.post_return(self._store)
        return answer

    def fuel_left(self) -> int:
        """The fuel that the last request did not use."""
        return int(self._store.get_fuel())

    def close(self) -> None:
        """Free the instance."""
        self._store.close()

    def _link(self, component: Component, callbacks: Callbacks) -> Any:
        from wasmtime.component import Linker  # noqa: PLC0415

        with Linker(self._engine) as linker:
            linker.add_wasip2()
            with linker.root() as root:
                for name, function in callbacks.items():
                    root.add_func(name, _without_store(function))
            instance = linker.instantiate(self._store, component)
        return instance.get_func(self._store, "handle")


def _without_store(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _store, *args: function(*args)


def _wasi(config: Any, places: Sequence[Place]) -> Any:
    config.inherit_stdout()
    config.inherit_stderr()
    for place in places:
        config.preopen_dir(place.source, place.target, place.writable)
    return config

"""One instance of the component: its store, its folders, and the functions it calls back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wasmtime import Engine
    from wasmtime.component import Component

CALLBACKS = ("call", "emit", "take", "fill", "put", "sleep", "leave", "gate")
_NEVER = 1 << 60


class Callbacks(Protocol):
    """The functions that the component imports; see component/sandbox.wit."""

    def call(self, line: str, /) -> str:
        """Call the host and return its answer."""
        ...

    def emit(self, number: int, data: str, /) -> None:
        """Print."""
        ...

    def take(self, size: int, /) -> str:
        """Return bytes of the passed descriptor."""
        ...

    def fill(self, address: int, size: int, /) -> bool:
        """Copy the passed file into the guest's memory."""
        ...

    def put(self, data: str, /) -> None:
        """Write bytes to the passed descriptor."""
        ...

    def sleep(self, seconds: float, /) -> bool:
        """Sleep; return whether an interrupt ended it."""
        ...

    def leave(self, code: int, /) -> None:
        """End the guest."""
        ...

    def gate(self, is_open: bool, /) -> bool:  # noqa: FBT001 - the component's signature
        """Allow or forbid interrupts."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of the worker that the guest sees."""

    source: str
    target: str
    writable: bool = False


class Instance:
    """Handles requests. After a trap it is unusable; without `close` its memory leaks."""

    def __init__(
        self,
        engine: Engine,
        component: Component,
        callbacks: Callbacks,
        places: Sequence[Place],
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
                for name in CALLBACKS:
                    root.add_func(name, _without_store(getattr(callbacks, name)))
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

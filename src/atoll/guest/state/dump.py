"""A session's variables, pickled together as they may share values.

One bad variable never costs the others: what fails is found out one by one and named, and the
rest is pickled together again.
"""

from __future__ import annotations

import sys

from ..shared import values
from . import blocks, pickler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    from ..core.preloaded import Preloaded
    from ..shared.messages import Names
    from .blocks import Budget

TAGS = MANIFEST, PICKLE, BUFFER = b"M", b"P", b"B"
MAX_REASON = 200
CONTEXT, LAST_VALUE = "context", "_"
PRIVATE = "names that begin with an underscore are not saved"
CHANGED_CONTEXT = "it was changed: a restored session has the context that it is opened with"


class Dump:
    """The variables of a session on their way into a state; `whole` takes private names too."""

    def __init__(
        self,
        module: ModuleType,
        offered: Names,
        preloaded: Preloaded,
        library: Any,
        *,
        given: Any,
        whole: bool,
    ) -> None:
        """`given` is the context that the host gave; `whole`: save private names, too."""
        self._offered, self._library = offered, library
        self._preloaded = preloaded
        self._given, self._whole = given, whole
        self._others: Names = {}
        self._carried: set[str] = set()
        self._session = pickler.Session(module, offered)
        self._namespace = {n: v for n, v in dict(vars(module)).items() if type(n) is str}
        self.left_out: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        modules = {name: _module_name(value) for name, value in self._namespace.items()}
        self._modules = {n: known for n, known in modules.items() if known and self._may_travel(n)}

    def make(self, budget: Budget, others: Names | None = None) -> None:
        """Pickle all that can be; `others` are facts that go with it."""
        self._others = others or {}
        before = budget.used
        self._names = self._wanted()
        while not self._try_all(budget):
            budget.used = before
            self._sift()
            self._names = [name for name in self._names if name not in self.left_out]
        self._name_the_rest()
        budget.spend(len(self._manifest()) + blocks.HEADER_BYTES * 3)

    def make_fitting(self, cap: int) -> None:
        """Pickle what fits into `cap` bytes; leave out the largest variables until it does."""
        budget = blocks.Budget(cap)
        self.make(budget)
        while budget.used > cap and self.sizes:
            name = max(self.sizes, key=lambda key: self.sizes[key])
            self.left_out[name] = "it has {:,} bytes".format(self.sizes[name])
            self.sizes, budget = {}, blocks.Budget(cap)
            self.make(budget)

    def write(self, writer: blocks.Writer) -> None:
        """Write the variables as blocks."""
        writer.write(MANIFEST, data=self._manifest())
        writer.write(PICKLE, data=self._sink.data)
        for view in self._sink.buffers:
            writer.write(BUFFER, data=view)

    def _manifest(self) -> bytes:
        import _pickle

        facts = {"modules": self._modules, "names": self._names}
        return _pickle.dumps(dict(facts, **self._preloaded.facts(), **self._others), 4)

    def _wanted(self) -> list[str]:
        """Public names, data first: what a function uses is then counted where it belongs."""
        known = self._namespace
        names = [n for n in known if self._whole or not n.startswith("_")]
        names = [n for n in names if self._may_travel(n)]
        names = [n for n in names if n not in self._modules]
        return sorted(names, key=lambda name: callable(known[name]))

    def _may_travel(self, name: str) -> bool:
        if name in self.left_out or name[:2] == name[-2:] == "__":
            return False
        if self._preloaded.holds(name):
            return False
        if name == CONTEXT:
            return self._whole and not self._context_is_given()
        return name not in self._offered or self._namespace[name] is not self._offered[name]

    def _context_is_given(self) -> bool:
        """Return whether the host's context is still there; only a text cannot be changed."""
        value = self._namespace.get(CONTEXT, self)
        return value is self._given and (value is None or isinstance(value, str))

    def _name_the_rest(self) -> None:
        """Name the variables that were not tried: all but the last value, which has no name."""
        if self._whole:
            return
        for name in self._namespace:
            left = name.startswith("_") and name != LAST_VALUE and self._may_travel(name)
            if left and name not in self._modules and name not in self._carried:
                self.left_out[name] = PRIVATE
        if self._namespace.get(CONTEXT) is not self._given:
            self.left_out[CONTEXT] = CHANGED_CONTEXT

    def _may_be_carried(self, name: str) -> bool:
        """Return whether a function takes this global of its along, and remember that it did."""
        if self._may_travel(name):
            self._carried.add(name)
        return name in self._carried

    def _try_all(self, budget: Budget) -> bool:
        """Pickle every name with one memory, so that what they share stays shared."""
        self._sink = _Sink(budget)
        self._carried = set()
        stream = self._pickler(self._sink, self._may_be_carried)
        for name in self._names:
            before = budget.used
            try:
                stream.dump(self._namespace[name])
            except KeyboardInterrupt:
                raise
            except BaseException as exc:
                self._blame = {name: exc}
                return False
            self.sizes[name] = budget.used - before
        return True

    def _sift(self) -> None:
        """Find the names that fail by themselves; if there is none, the one that failed just now.

        A function is tried without its globals: one it uses may be bad without its being so.
        """
        queue = list(self._names)
        failures: dict[str, BaseException] = {}

        def ask(name: str) -> bool:
            if name not in queue and self._may_travel(name):
                queue.append(name)  # a private name, needed after all
            return False

        for name in queue:
            try:
                self._pickler(_Sink(blocks.Budget(0)), ask).dump(self._namespace[name])
            except KeyboardInterrupt:
                raise
            except BaseException as exc:
                failures[name] = exc
        for name, fault in (failures or self._blame).items():
            self.left_out[name] = _reason(fault)

    def _pickler(self, sink: _Sink, may_travel: Callable[[str], bool]) -> Any:
        return pickler.make(self._library, sink, self._session, may_travel)


class _Sink:
    """Takes what a pickler writes; over the budget it only counts."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.data = bytearray()
        self.buffers: list[memoryview] = []

    def write(self, chunk: Any) -> int:
        size = memoryview(chunk).nbytes
        if self._budget.spend(size):
            self.data += chunk
        return size

    def take_buffer(self, buffer: Any) -> None:
        view = buffer.raw()
        if self._budget.spend(view.nbytes + blocks.HEADER_BYTES):
            self.buffers.append(view)


def _module_name(value: Any) -> str | None:
    """Under which name it is imported, if it is a module that can be."""
    if not issubclass(type(value), type(sys)):
        return None
    name = vars(value).get("__name__")
    return name if type(name) is str and sys.modules.get(name) is value else None


def _reason(exc: BaseException) -> str:
    return "{}: {}".format(values.type_name(type(exc)), values.short_text(exc))[:MAX_REASON]

"""Saves a session's variables and files as a stream of blocks, and restores them from one.

One bad variable never costs the others: all are pickled together, as they may share values; what
fails is found out one by one and named, and the rest is pickled together again.
"""

from __future__ import annotations

import sys

from . import blocks, folder, pickler, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Iterable

    from .blocks import Budget

MANIFEST, PICKLE, BUFFER = b"M", b"P", b"B"
LARGEST = 5
MAX_LEFT_OUT = 1_000
MAX_REASON = 200
GIVEN_ANEW = frozenset({"context"})


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


class Keeper:
    """Saves and restores the session whose namespace is that of `module`."""

    def __init__(self, module: ModuleType, root: str) -> None:
        self._module, self._root = module, root
        self._cloudpickle = pickler.Borrowed()
        self.offered: dict[str, Any] = {}

    def save(self, fd: int, max_bytes: int, cloudpickle: str, with_files: bool) -> dict[str, Any]:
        """Write the state to `fd`; what the host is told of it."""
        sys.modules["__main__"] = self._module
        budget, files = blocks.Budget(max_bytes), folder.Folder(self._root)
        if with_files:
            files.find(budget)
        with self._cloudpickle.ready(cloudpickle) as library:
            dump = Dump(self._module, self.offered, library)
            dump.make(budget)
        sizes = dict(files.sizes, **dump.sizes)
        facts = {"size": budget.used, "largest": _largest(sizes)}
        if budget.used > max_bytes:
            return dict(facts, too_large=True)
        writer = blocks.Writer(fd)
        files.write(writer)
        dump.write(writer)
        writer.write(blocks.END)
        left_out = _short(dict(files.left_out, **dump.left_out))
        return dict(facts, stored=writer.stored, codec=writer.codec_name, left_out=left_out)

    def restore(self, fd: int, max_bytes: int, cloudpickle: str) -> dict[str, Any]:
        """Read a state from `fd` into the namespace and the folder."""
        import io
        import pickle

        sys.modules["__main__"] = self._module
        parts: dict[bytes, list[bytearray]] = {MANIFEST: [], PICKLE: [], BUFFER: []}
        for tag, name, data in blocks.read(fd, max_bytes):
            if tag in folder.TAGS:
                folder.put(self._root, tag, name, data)
            else:
                parts[tag].append(data)
        with self._cloudpickle.ready(cloudpickle):
            manifest = pickle.loads(parts[MANIFEST][0])  # noqa: S301 - in the guest, where it belongs
            self._import(manifest["modules"])
            stream = pickle.Unpickler(io.BytesIO(parts[PICKLE][0]), buffers=parts[BUFFER])  # noqa: S301
            for name in manifest["names"]:
                vars(self._module)[name] = stream.load()
        return {"restored": len(manifest["names"])}

    def _import(self, modules: dict[str, str]) -> None:
        for alias, name in modules.items():
            __import__(name)
            vars(self._module)[alias] = sys.modules[name]


class Dump:
    """The variables of a session on their way into a state."""

    def __init__(self, module: ModuleType, offered: dict[str, Any], library: Any) -> None:
        self._offered, self._library = offered, library
        self._session = pickler.Session(module, offered)
        self._namespace = dict(vars(module))
        self._modules = {n: m.__name__ for n, m in self._namespace.items() if _importable(m)}
        self.left_out: dict[str, str] = {}
        self.sizes: dict[str, int] = {}

    def make(self, budget: Budget) -> None:
        """Pickle all that can be."""
        before = budget.used
        self._names = self._wanted()
        while not self._try_all(budget):
            budget.used = before
            self._sift()
            self._names = [name for name in self._names if name not in self.left_out]
        budget.spend(len(self._manifest()) + blocks.HEADER_BYTES * 3)

    def write(self, writer: blocks.Writer) -> None:
        """As blocks."""
        writer.write(MANIFEST, data=self._manifest())
        writer.write(PICKLE, data=self._sink.data)
        for view in self._sink.buffers:
            writer.write(BUFFER, data=view)

    def _manifest(self) -> bytes:
        import pickle

        return pickle.dumps({"modules": self._modules, "names": self._names}, 4)

    def _wanted(self) -> list[str]:
        """Public names, data first: what a function uses is then counted where it belongs."""
        known = self._namespace
        names = [n for n in known if not n.startswith("_") and self._may_travel(n)]
        names = [n for n in names if n not in self._modules]
        return sorted(names, key=lambda name: callable(known[name]))

    def _may_travel(self, name: str) -> bool:
        if name in GIVEN_ANEW or name in self.left_out or name[:2] == name[-2:] == "__":
            return False
        return name not in self._offered or self._namespace[name] is not self._offered[name]

    def _try_all(self, budget: Budget) -> bool:
        """Pickle every name with one memory, so that what they share stays shared."""
        self._sink = _Sink(budget)
        stream = self._pickler(self._sink, self._may_travel)
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
        found: dict[str, BaseException] = {}

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
                found[name] = exc
        for name, fault in (found or self._blame).items():
            self.left_out[name] = _reason(fault)

    def _pickler(self, sink: _Sink, may_travel: Any) -> Any:
        return pickler.make(self._library, sink, self._session, may_travel)


def _importable(value: Any) -> bool:
    return isinstance(value, type(sys)) and sys.modules.get(value.__name__) is value


def _reason(exc: BaseException) -> str:
    try:
        text = str(exc)
    except Exception:
        text = ""
    return "{}: {}".format(values.type_name(type(exc)), text)[:MAX_REASON]


def _largest(sizes: dict[str, int]) -> list[list[Any]]:
    found = sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST]
    return [[name[:MAX_REASON], size] for name, size in found]


def _short(left_out: dict[str, str]) -> dict[str, str]:
    """No more than fits an answer."""
    kept: Iterable[tuple[str, str]] = list(left_out.items())[:MAX_LEFT_OUT]
    return {name[:MAX_REASON]: reason[:MAX_REASON] for name, reason in kept}

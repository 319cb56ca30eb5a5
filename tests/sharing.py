"""One sandbox for many tests, in backends that start slowly: made as new after each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import variants

import atoll

Kind = tuple[str, str | None, str | None]
"""Backend, context and image."""
TIMEOUT_MS = 20_000

SHARED = frozenset({"native", "gvisor", "pyodide"})
"""Backends whose starts, or whose imports of libraries, take long; elsewhere a test has its own."""

REMEMBER = """
def remember():
    import builtins, os, signal, sys, threading, types, warnings
    note = sys.modules["as_it_was"] = types.ModuleType("as_it_was")
    note.env, note.path = dict(os.environ), list(sys.path)
    note.filters, note.threads = list(warnings.filters), threading.active_count()
    note.builtins = dict(vars(builtins))
    note.handlers = [signal.getsignal(number) for number in range(1, signal.NSIG)]
    note.files = {folder: set(os.listdir(folder)) for folder in ("/app", "/tmp")}  # mounts, perhaps
    note.names = {name: value for name, value in globals().items() if name != "remember"}
remember()
del remember
"""
RESTORE = """
def restore():
    import builtins, os, shutil, signal, sys, threading, warnings
    note = sys.modules["as_it_was"]
    os.chdir("/app")
    pids = filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ())
    # A library that started a process or a thread may remember it: such a sandbox is ended.
    assert not [pid for pid in pids if int(pid) not in (1, os.getpid())], "processes are left"
    assert threading.active_count() <= note.threads, "threads are left"
    assert vars(builtins) == note.builtins, "builtins are changed"
    handlers = [signal.getsignal(number) for number in range(1, signal.NSIG)]
    assert handlers == note.handlers, "a signal's handler is changed"
    warnings.resetwarnings()  # it also clears the caches that a change of the list alone leaves
    warnings.filters[:] = note.filters
    for folder, before in note.files.items():
        for entry in [one for one in os.scandir(folder) if one.name not in before]:
            real = entry.is_dir(follow_symlinks=False)
            shutil.rmtree(entry.path) if real else os.unlink(entry.path)
    os.environ.clear()
    os.environ.update(note.env)
    sys.path[:] = note.path
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    globals().clear()
    globals().update(note.names)
restore()
"""


class SharedBoxes:
    """One sandbox a backend, context and image, opened when a test asks for it."""

    def __init__(self) -> None:
        self._boxes: dict[Kind, atoll.SyncSandbox] = {}
        self.kept: list[str] = []
        """The backends of others that are kept for several tests."""

    def count(self, backend: str) -> int:
        """Return how many sandboxes of a backend are kept."""
        return sum(kind[0] == backend for kind in self._boxes) + self.kept.count(backend)

    @contextmanager
    def keep(self, backend: str, **options: Any) -> Iterator[atoll.SyncSandbox]:
        """One for several tests, which take care of what they leave in it."""
        options.setdefault("timeout_ms", TIMEOUT_MS)
        with atoll.create_sandbox(backend=backend, **options) as box:
            self.kept.append(backend)
            yield box
        self.kept.remove(backend)

    @contextmanager
    def lend(self, backend: str, context: str | None = None) -> Iterator[atoll.SyncSandbox]:
        """One that is as it was when it was new; what is done to it is undone, or it is ended."""
        kind = backend, context, variants.image_in_use()
        if kind not in self._boxes:
            box = atoll.create_sandbox(backend=backend, context=context, timeout_ms=TIMEOUT_MS)
            self._boxes[kind] = box
            assert box.execute(REMEMBER).success
        yield self._boxes[kind]
        if not _restored(self._boxes[kind]):
            self._boxes.pop(kind).destroy()

    def close(self) -> None:
        """Destroy them all."""
        while self._boxes:
            self._boxes.popitem()[1].destroy()


def _restored(box: atoll.SyncSandbox) -> bool:
    """Not if the test has closed it, or another guest stands in for the first one."""
    try:
        result = box.execute(RESTORE)
    except atoll.AtollError:
        return False
    return result.success and not result.stdout and not result.stderr


shared_boxes = SharedBoxes()

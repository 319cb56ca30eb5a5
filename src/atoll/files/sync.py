"""The file operations for blocking code: every method of Files, with the same arguments."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from atoll.files.base import Files
from atoll.text.name_hints import FilesHints

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """Runs a coroutine and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns."""
        ...


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a blocking facade: the async one of `self._inner`, run by `self._run`.

    It has the same arguments, types and docstring.
    """
    name = method.__name__

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        done: T = self._run(getattr(self._inner, name)(*args, **kwargs))
        return done

    return call


class SyncFiles(FilesHints):
    """The files of a sandbox, for blocking code."""

    def __init__(self, files: Files, run: Runner) -> None:
        self._inner, self._run = files, run

    ls = blocking(Files.ls)
    read = blocking(Files.read)
    read_raw = blocking(Files.read_raw)
    write = blocking(Files.write)
    edit = blocking(Files.edit)
    grep = blocking(Files.grep)
    glob = blocking(Files.glob)
    ls_info = blocking(Files.ls_info)
    grep_raw = blocking(Files.grep_raw)
    glob_info = blocking(Files.glob_info)
    stat = blocking(Files.stat)
    mkdir = blocking(Files.mkdir)
    delete = blocking(Files.delete)
    move = blocking(Files.move)
    upload = blocking(Files.upload)
    download = blocking(Files.download)


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a blocking operation has waited for an event loop")

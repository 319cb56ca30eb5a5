"""Hints for attributes that people and models guess: `box.run` is called `box.execute` here."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def table(names: Mapping[str, str]) -> dict[str, str]:
    """Return a hint for each guessed name; the keys of `names` hold several, with spaces."""
    return {part: hint for many, hint in names.items() for part in many.split()}


def closest(name: str, known: Iterable[str]) -> str:
    """Return `: did you mean 'x'?` for the closest public name, or an empty text."""
    close = difflib.get_close_matches(name, [item for item in known if item[0] != "_"], 1)
    return f": did you mean {close[0]!r}?" if close else ""


class NameHints:
    """Base of a class whose unknown attributes raise AttributeError with the name to use."""

    __slots__ = ()
    _guessed: ClassVar[Mapping[str, str]] = {}
    """What to use instead, by the name that people guess."""
    _otherwise: ClassVar[str] = ""
    """The hint for a name that is like none of the class."""

    if not TYPE_CHECKING:  # a type checker would take any name for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError; called only for unknown names."""
            cls = type(self)
            if hasattr(cls, name):  # a property that has raised, or a slot that is not filled
                object.__getattribute__(self, name)
            raise _no_attribute(cls, name)


def _no_attribute(cls: Any, name: str) -> AttributeError:
    text = f"{cls.__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        guessed = cls._guessed.get(name)
        hint = f": use {guessed}" if guessed else closest(name, dir(cls))
        text += hint or cls._otherwise.format(name)
    # With an object, Python would add a second hint to the traceback.
    return AttributeError(text, name=name, obj=None)


class SandboxHints(NameHints):
    """The names that are guessed of a sandbox."""

    _guessed = table(
        {
            "run exec eval run_code exec_code execute_code run_cell cell": "execute(code)",
            "close aclose kill stop terminate shutdown quit exit end delete": "destroy()",
            "command commands run_command cmd bash sh system": "shell(command)",
            "process popen spawn pty terminal start_process": "start(command)",
            "upload upload_file upload_files put put_file": "files.upload([(path, data)])",
            "download download_file download_files": "files.download([path])",
            "write write_file": "files.write(path, text)",
            "read read_file": "files.read(path)",
            "ls list_files listdir": "files.ls()",
            "interrupt": "cancel()",
            "clone copy": "fork()",
            "snapshot": "checkpoint() or save()",
            "restore undo revert": "rollback(mark)",
            "state dump dumps": "save()",
            "reset restart open": "initialize()",
            "get get_var": "get_variable(name)",
            "set set_var": "set_variable(name, value)",
            "vars globals locals namespace": "variables()",
        }
    )
    _otherwise = ". A guest's variable is read by get_variable({!r})"


class FilesHints(NameHints):
    """The names that are guessed of a sandbox's files."""

    _guessed = table(
        {
            "list listdir list_files": "ls(path)",
            "put upload_file upload_files write_bytes": "upload([(path, data)])",
            "get download_file download_files read_bytes": "download([path])",
            "read_text": "read_raw(path)",
            "write_text write_file": "write(path, text)",
            "read_file open": "read(path)",
            "mkdirs makedirs": "mkdir(path)",
            "remove rm unlink rmdir rmtree": "delete(path)",
            "rename mv": "move(source, target)",
            "exists is_file is_dir isfile isdir": "stat(path)",
            "find search": "glob(pattern) or grep(pattern)",
            "copy cp": "the sandbox's shell: shell(['cp', source, target])",
        }
    )


class EnvironmentHints(NameHints):
    """The names that are guessed of a REPLEnvironment."""

    _guessed = table(
        {
            "run exec eval run_code run_cell step": "execute(code)",
            "destroy stop shutdown": "close()",
            "sandbox": "box",
            "files shell fork get_variable variables": "the same of its sandbox, `box`",
        }
    )


class RLMHints(NameHints):
    """The names that are guessed of an RLM."""

    _guessed = table(
        {
            "run ask query answer complete generate invoke": "completion(question, context)",
            "chat": "session(context)",
        }
    )

"""What a model calls to look into its context and to give its answer: thin, the host does the work.

A file of the guest's own is looked into here: no host has to open what a guest has made.
"""

from __future__ import annotations

from .own_files import Hits, Ranked, entries_of, grep_file, open_own, peek_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..shared.messages import Json, Names

    CallHost = Callable[..., Any]

PEEKED = 500
"""Characters that peek() shows unless it is told how many."""
LARGEST_SENT = 16 << 20
"""Bytes of an archive of the guest's own that are handed to the host."""
SHOWN_VARIABLES, NAMED = 200, 40
"""Variables that SHOW_VARS() has, and those that an error names: the newest."""
NOTHING = ...
ELSEWHERE, REPEATED = "elsewhere", "repeated"
"""The host has nothing of that name, the guest may; then the call is made again, with bytes."""
OWN = "$own"
"""The argument by which the host's log learns what was found here; no parameter has this name."""
REPORTED = 1 << 16
"""Characters of a result that are reported."""


class ContextLength(int):
    """The context's characters; `context_len` and `context_len()` are both in use."""

    def __call__(self) -> int:
        """The number itself."""
        return int(self)


class Explorer:
    """The functions; each checks what it is given, so that a model learns what it did wrong."""

    NAMES = (
        "peek",
        "grep",
        "list_dir",
        "code_search",
        "doc_search",
        "colgrep",
        "archive_open",
        "archive_file",
        "archive_search",
        "web_fetch",
        "FINAL",
        "FINAL_VAR",
        "SUBMIT",
        "SHOW_VARS",
        "SHOW_TOOLS",
    )

    def __init__(
        self, call_host: CallHost, namespace: Names, own: Callable[[], Names], own_files: bool
    ) -> None:
        self._call, self._namespace, self._own_files = call_host, namespace, own_files
        self._own = own

    def peek(
        self,
        first: Any = PEEKED,
        second: int | None = None,
        start: int = 0,
        *,
        n: int | None = None,
        path: str | None = None,
    ) -> str:
        """Characters of the context, or of a file, from a place on."""
        if path is not None:
            first, second = path, n if n is not None else second
        elif n is not None:
            first, second = (first, n) if isinstance(first, str) else (n, second)
        if isinstance(first, str):
            path, n = first, PEEKED if second is None else second
            answer = self._call("peek", n, start, path)
            if not self._mine(answer, path):
                return str(answer["text"])
            result: str = self._look("peek", answer, peek_file, path, n, start)
            return result
        text: str = self._call("peek", first, start if second is None else second)["text"]
        return text

    def grep(
        self,
        first: Any = NOTHING,
        second: str | None = None,
        ignore_case: bool = False,
        *,
        pattern: Any = NOTHING,
        path: str | None = None,
    ) -> Hits:
        """Lines of the context, or of a file, that match, with their numbers and offsets."""
        if pattern is not NOTHING:
            path = first if first is not NOTHING else path
            first, second = (pattern, None) if path is None else (path, pattern)
        elif path is not None:
            first, second = path, first if first is not NOTHING else second
        if first is NOTHING or (path is not None and second is None):
            raise TypeError(
                "grep what? grep(pattern) in the context, grep(path, pattern) in a file"
            )
        path, pattern = (None, first) if second is None else (first, second)
        answer = self._call("grep", pattern, path, ignore_case)
        if path is not None and self._mine(answer, path):
            result: Hits = self._look(
                "grep", answer, grep_file, path, pattern, ignore_case, answer["most"]
            )
            return result
        return _hits(answer)

    def list_dir(self, path: str = ".") -> list[str]:
        """Names in a folder; folders end in a slash. Documents first, then the own files."""
        answer = self._call("list_dir", path)
        mine = entries_of(path) if self._own_files else None
        if mine is None and answer["names"] is None:
            raise FileNotFoundError(
                "there is no folder {!r}: try list_dir(); a file is read with peek(path)".format(
                    path
                )
            )
        return sorted(set(answer["names"] or []) | set(mine or []))

    def code_search(self, query: str, k: int = 10) -> list[Json]:
        """The functions, classes and methods that fit a question best."""
        return Ranked(self._call("code_search", query, k), k)

    def doc_search(self, query: str, k: int = 10) -> list[Json]:
        """The sections of documents that fit a question best."""
        return Ranked(self._call("doc_search", query, k), k)

    def colgrep(self, query: str, pattern: str | None = None, k: int = 10) -> list[Json]:
        """Units of code by meaning, token by token; with `pattern`, those that it matches."""
        return Ranked(self._call("colgrep", query, pattern, k), k)

    def archive_open(self, path: Any) -> list[Json]:
        """Open a zip, tar, 7z or pdf (a path, or its bytes): its members, for archive_file."""
        if isinstance(path, (bytes, bytearray)):
            return _members(self._call("archive_open", "archive", bytes(path)))
        answer = self._call("archive_open", path)
        if self._mine(answer, path):
            answer = self._call("archive_open", path, _read_own(path))
        return _members(answer)

    def archive_file(self, name: str) -> str:
        """The text of a member of the archive that was opened last."""
        text: str = self._call("archive_file", name)
        return text

    def archive_search(self, query: str) -> Hits:
        """Lines of the archive's members that have `query` in them."""
        return _hits(self._call("archive_search", query))

    def web_fetch(self, url: str) -> str:
        """The text of a page, from the hosts that are allowed."""
        text: str = self._call("web_fetch", url)
        return text

    def FINAL(self, answer: Any = NOTHING, quotes: Any = ()) -> None:  # noqa: N802 - as known
        """Give the final answer and end; `quotes` are passages of the context that show it."""
        if answer is NOTHING:
            raise TypeError("FINAL takes the answer: FINAL('...'), or FINAL_VAR('name')")
        self._finish("FINAL", _value(answer, "FINAL"), quotes)

    def FINAL_VAR(self, name: str, quotes: Any = ()) -> None:  # noqa: N802 - as models know it
        """Give a variable, by its name, as the final answer, and end."""
        if not isinstance(name, str):
            raise TypeError("FINAL_VAR takes a variable's name as a text: FINAL_VAR('result')")
        key = name.strip().strip("\"'")
        if key not in self._namespace:
            names = self._variables()
            more = ["and {:,} more".format(len(names) - NAMED)] if len(names) > NAMED else []
            known = ", ".join(names[-NAMED:] + more) or "none yet"
            raise NameError(
                "there is no variable {!r} to give as the answer; there are: {}. "
                "Assign it first, then call FINAL_VAR".format(key[:100], known)
            )
        self._finish("FINAL_VAR", _value(self._namespace[key], "FINAL_VAR"), quotes)

    def SUBMIT(self, *values: Any, **fields: Any) -> None:  # noqa: N802 - as models know it
        """Give the final answer as named fields, and end."""
        if len(values) > 1 or (values and fields):
            raise TypeError("SUBMIT takes fields by name: SUBMIT(answer=..., reason=...)")
        self._finish("SUBMIT", _value(values[0] if values else fields, "SUBMIT"), ())

    def SHOW_VARS(self) -> dict[str, str]:  # noqa: N802 - as models know it
        """The variables that there are, and their types; of very many, the newest."""
        names = self._variables()
        kinds = {name: type(self._namespace[name]).__name__ for name in names[-SHOWN_VARIABLES:]}
        if len(names) > SHOWN_VARIABLES:
            kinds["..."] = "{:,} older variables".format(len(names) - SHOWN_VARIABLES)
        return kinds

    def SHOW_TOOLS(self) -> str:  # noqa: N802 - beside SHOW_VARS
        """The functions that there are, one a line; help(function) says more."""
        text: str = self._call("SHOW_TOOLS")
        return text

    def _finish(self, how: str, value: Any, quotes: Any) -> None:
        quoted = [quotes] if isinstance(quotes, str) else quotes
        if not isinstance(quoted, (list, tuple)):
            raise TypeError("quotes takes passages of the context in a list: quotes=['...']")
        self._call("FINAL", how, value, list(quoted))
        raise SystemExit(0)

    def _variables(self) -> list[str]:
        return [name for name in self._own() if not name.startswith("_")]

    def _look(self, name: str, answer: Any, work: CallHost, *args: Any) -> Any:
        """Look into a file of the guest, and send the result to the host's log."""
        report = {"call": answer["call"]}
        try:
            result = work(*args)
        except Exception as exc:
            report["failed"] = type(exc).__name__
            raise
        else:
            text = result if isinstance(result, str) else "\n".join(hit["text"] for hit in result)
            report.update(text=text[:REPORTED], size=len(text))
            return result
        finally:
            self._call(name, **{OWN: report})

    def _mine(self, answer: Any, path: str) -> bool:
        """Return whether a path is the guest's: the host has nothing of that name."""
        if not answer.get(ELSEWHERE):
            return False
        if not self._own_files:
            raise FileNotFoundError("there is no document {!r}: try list_dir()".format(path))
        return True


def _hits(answer: Any) -> Hits:
    return Hits(answer["hits"], answer["total"], answer["counted"], answer.get("words"))


def _members(answer: Any) -> Hits:
    return Hits(answer["members"], answer["total"])


def _value(value: Any, where: str) -> Any:
    if callable(value):
        kind = "a class" if isinstance(value, type) else "a function"
        name = getattr(value, "__name__", "f")
        raise TypeError(
            "{0} was given {1}, not an answer. Call it, and give what it returns: "
            "{0}({2}(...))".format(where, kind, name)
        )
    return value


def _read_own(path: str) -> bytes:
    with open_own(path, "rb") as file:
        data: bytes = file.read(LARGEST_SENT + 1)
    if len(data) > LARGEST_SENT:
        raise ValueError(
            "{} has more than {:,} bytes, which is the most that archive_open takes of a file "
            "made here; zipfile and tarfile can read it".format(path, LARGEST_SENT)
        )
    return data

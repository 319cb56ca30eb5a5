"""What a notebook sees of a cell, and what it asks of a kernel, as Jupyter's messages have it.

The Jupyter kernel and the HTTP service's gateway both answer with these; neither package of
Jupyter's is needed. SECURITY: code that is made here runs in the guest; a name goes into it only
as a literal, or after it was matched against the form of a dotted name.
"""

from __future__ import annotations

import ast
import base64
import codeop
import fnmatch
import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.guest.cells import magics
from atoll.types import stderr_with_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atoll.types import Display, SandboxResult

Content = dict[str, Any]
"""The content of a message, as Jupyter's protocol has it."""
Message = tuple[str, Content]
"""The type of a message, and its content."""
MAX_HISTORY = 10_000
MAX_HISTORY_LENGTH = 1 << 18
"""Characters of all earlier cells that are kept."""
MAX_MATCHES = 500
ASK_MS = 5_000
"""How long a completion or an inspection may take."""
LANGUAGE_INFO = {
    "name": "python",
    "version": platform.python_version(),
    "mimetype": "text/x-python",
    "file_extension": ".py",
    "pygments_lexer": "ipython3",
    "codemirror_mode": {"name": "ipython", "version": 3},
    "nbconvert_exporter": "python",
}
_TRACEBACK = "Traceback (most recent call last):"
_TEXT_FORMS = ("text/html", "text/markdown", "text/latex", "image/svg+xml", "application/json")
_NAME = re.compile(r"[A-Za-z_][\w.]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """How a cell ended."""

    success: bool
    kind: str
    error_type: str | None
    error: str | None
    value_repr: str | None = None
    """None if the cell has no value, or its value is None."""
    is_scalar: bool = False
    """Whether the value is a number or a text, which has no form but its repr."""
    displays: Sequence[Display] = ()

    @classmethod
    def of(cls, result: SandboxResult) -> CellResult:
        """Return a result as a notebook sees it."""
        return cls(
            success=result.success,
            kind=result.kind.value,
            error_type=result.error_type,
            error=result.error,
            value_repr=None if result.value is None else result.value_repr,
            is_scalar=isinstance(result.value, str | int | float),
            displays=result.displays,
        )

    def failure(self, trace: str) -> Content:
        """Return the content of an error: its name, its words, its traceback by lines."""
        name, words = self.error_type or self.kind, self.error or ""
        words = words.removeprefix(f"{name}: ")
        shown = stderr_with_error(trace, f"{name}: {words}", self.kind)
        return {"ename": name, "evalue": words, "traceback": shown.splitlines()}

    def messages(self, count: int) -> list[Message]:
        """Return what the cell shows: images and displays first, its value as the last."""
        shown: list[Content] = []
        forms: Content = {}
        for display in self.displays:
            if display.media_type not in _TEXT_FORMS:
                shown.append({display.media_type: base64.b64encode(display.data).decode()})
                continue
            if display.media_type in forms:  # the forms of another object begin
                shown.append(forms)
                forms = {}
            forms[display.media_type] = display.data.decode("utf-8", "replace")
        if forms and (self.value_repr is None or self.is_scalar):
            shown.append(forms)
            forms = {}
        messages: list[Message] = [
            ("display_data", {"data": data, "metadata": {}, "transient": {}}) for data in shown
        ]
        if self.value_repr is not None:
            data = {"text/plain": self.value_repr, **forms}
            value = {"execution_count": count, "data": data, "metadata": {}}
            messages.append(("execute_result", value))
        return messages

    def expression(self) -> Content:
        """Return the answer for one of `user_expressions`."""
        if self.success:
            data = {"text/plain": self.value_repr or "None"}
            return {"status": "ok", "data": data, "metadata": {}}
        return {"status": "error", **self.failure(""), "traceback": []}


class Printed:
    """What a cell prints. A traceback is held back, as it may be the cell's error."""

    def __init__(self) -> None:
        self.trace = ""

    def hear(self, stream: str, text: str) -> str:
        """Return what of a piece of output can be shown now."""
        if stream != "stderr":
            return text
        held = self.trace + text
        at = held.find(_TRACEBACK)
        self.trace = "" if at < 0 else held[at:]
        return held if at < 0 else held[:at]


class Past:
    """Earlier cells with their numbers."""

    def __init__(self) -> None:
        self._cells: list[tuple[int, str]] = []

    def add(self, number: int, code: str) -> None:
        """Keep a cell; the oldest are forgotten when there are too many, or they are too long."""
        self._cells = [*self._cells[1 - MAX_HISTORY :], (number, code[:MAX_HISTORY_LENGTH])]
        while sum(len(cell) for _, cell in self._cells) > MAX_HISTORY_LENGTH:
            self._cells.pop(0)

    def find(self, asked: Content) -> Content:
        """Return the answer to a history request: a range, a search, or the last ones."""
        cells: Iterable[tuple[int, str]] = self._cells
        kind, most = asked.get("hist_access_type"), asked.get("n")
        if kind == "range":
            first, last = asked.get("start") or 0, asked.get("stop") or MAX_HISTORY
            cells = [cell for cell in cells if first <= cell[0] < last]
        elif kind == "search":
            pattern = asked.get("pattern") or "*"
            cells = [cell for cell in cells if fnmatch.fnmatchcase(cell[1], pattern)]
            if asked.get("unique"):
                cells = [(number, code) for code, number in {c: n for n, c in cells}.items()]
        pairs = asked.get("output")
        rows = [(0, number, (code, None) if pairs else code) for number, code in cells]
        return {"status": "ok", "history": rows[-most:] if most else rows}


def completing(code: str, cursor: int) -> tuple[str, str]:
    """Return the name before the cursor, and code that prints what it may become; "" if none."""
    match = re.search(r"[A-Za-z_][\w.]*\Z", code[:cursor])
    word = match[0] if match else ""
    kind = "attr" if "." in word else "global"
    lookup = f"__import__('rlcompleter').Completer(globals()).{kind}_matches({word!r})"
    return word, f"print(*{lookup}, sep='\\n')" if word else ""


def completed(word: str, cursor: int, printed: str) -> Content:
    """Return the answer to a completion request."""
    names = {line.rstrip("( ") for line in printed.splitlines() if line.startswith(word)}
    return {
        "status": "ok",
        "matches": sorted(names)[:MAX_MATCHES],
        "cursor_start": cursor - len(word),
        "cursor_end": cursor,
        "metadata": {},
    }


def inspecting(code: str, cursor: int) -> str:
    """Return code that prints the documentation of the name at the cursor; "" if none is there."""
    before = re.search(r"[A-Za-z_][\w.]*\Z", code[:cursor])
    after = re.match(r"\w*", code[cursor:])
    name = (before[0] if before else "") + (after[0] if after else "")
    if not _NAME.match(name):
        return ""
    pydoc = "__import__('pydoc')"
    return f"print({pydoc}.render_doc({name}, renderer={pydoc}.plaintext))"


def inspected(printed: str) -> Content:
    """Return the answer to an inspection request."""
    data = {"text/plain": printed} if printed else {}
    return {"status": "ok", "data": data, "metadata": {}, "found": bool(data)}


def is_complete(code: str) -> Content:
    """Say whether a front end should run the code or let the user type on."""
    try:
        python = magics.translate(code)
        done = codeop.compile_command(python[0] if python else code, symbol="exec")
        if done is not None and not _block_is_open(code):
            return {"status": "complete"}
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return {"status": "invalid"}
    last = code.splitlines()[-1] if code.strip() else ""
    indent = last[: len(last) - len(last.lstrip())]
    indent += "    " if last.rstrip().endswith(":") else ""
    return {"status": "incomplete", "indent": indent}


def _block_is_open(code: str) -> bool:
    """Whether code that compiles ends inside a block: an empty line closes it."""
    last = code.rsplit("\n", 1)[-1]
    if not last[:1].isspace() or not last.strip() or magics.translate(code):
        return False
    return hasattr(ast.parse(code).body[-1], "body")

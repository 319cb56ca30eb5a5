"""Compiles a cell: all statements, and a last expression apart from them, as its value is shown."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

    Compiled = tuple[types.CodeType, "types.CodeType | None"]


ONLY_TREE = 0x400
"""The flag ast.PyCF_ONLY_AST."""
_STATEMENTS = frozenset(("assert", "class", "def", "del", "for", "from", "if", "import", "raise"))
"""Words that no expression begins with."""


def compile_plain(code: str, name: str) -> Compiled:
    """Compile a cell of plain Python; SyntaxError if it is not.

    Most cells end with a line that is an expression: they are cut before it. That takes no syntax
    tree. To make the classes of its nodes takes a new process more than a millisecond, and to make
    the nodes takes longer than to compile.
    """
    at = code.rfind("\n", 0, len(code.rstrip())) + 1
    body, last = code[:at], code[at:]
    if "\r" in code or body.endswith("\\\n"):  # it may be a line where this does not see one
        return split(code, name)
    if not _begins_statement(last):  # an attempt that fails takes as long as one that does not
        try:
            value = compile("\n" * body.count("\n") + last, name, "eval", dont_inherit=True)
            # Whole on its own, so nothing of it is open where the last line begins.
            return compile(body, name, "exec", dont_inherit=True), value
        except SyntaxError:
            pass
    if body or ";" in last or "*" in last:  # `*a, b` is an expression only as a statement
        return split(code, name)
    # A single line that is one statement, and no expression: it has no value.
    return compile(code, name, "exec", dont_inherit=True), None


def _begins_statement(line: str) -> bool:
    """Return whether the line cannot be an expression: it assigns to a name, or has a keyword."""
    target, equals, value = line.partition("=")
    if equals and not value.startswith("=") and target.rstrip("+-*/%&|^@ ").isidentifier():
        return True
    return line.split(" ", 1)[0] in _STATEMENTS


def split(code: str, name: str, flags: int = 0) -> Compiled:
    """Compile any cell by its syntax tree."""
    tree: Any = compile(code, name, "exec", ONLY_TREE | flags, dont_inherit=True)
    last: Any = None
    if tree.body and type(tree.body[-1]).__name__ == "Expr":
        last = compile("0", name, "eval", ONLY_TREE)  # a node to fill: no module has to be loaded
        last.body = tree.body.pop().value
    body = compile(tree, name, "exec", flags, dont_inherit=True)
    return body, None if last is None else compile(last, name, "eval", flags, dont_inherit=True)

"""Walks a syntax tree with a guard's tables and collects violations.

SECURITY: the code is hostile. Its size and its number of nodes are limited, and the walk does not
recurse, so that no code can block or crash the host that checks it.
"""

from __future__ import annotations

import ast
import re
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.guest.cells import bidi
from atoll.sandbox.guard import profiles, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atoll.sandbox.guard.profiles import Profile


ERROR_TYPE = "GuardError"
MAX_TOLD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that a guard refuses; the message says what to do instead."""

    line: int
    column: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, {self.rule}: {self.message}"


def describe(violations: Sequence[Violation]) -> str:
    """Return the error text of refused code: a line for each violation, up to ten."""
    lines = [str(violation) for violation in violations[:MAX_TOLD]]
    if len(violations) > MAX_TOLD:
        lines.append(f"and {len(violations) - MAX_TOLD} more")
    return f"{ERROR_TYPE}: the code was refused and did not run: " + "\n".join(lines)


Look = Callable[[Any, Any], None]

MAX_CHARACTERS = 500_000
MAX_NODES = 500_000
MAX_VIOLATIONS = 100
_WALK = re.compile(r"\{[^{}]*[.\[]\s*(_\w+|" + "|".join(sorted(words.FRAMES)) + r")[^{}]*")


def examine(code: str, profile: Profile) -> tuple[Violation, ...] | None:
    """Return what a profile refuses in the code; None if the code does not parse."""
    if len(code) > MAX_CHARACTERS:
        result = f"{len(code):,} characters, of at most {MAX_CHARACTERS:,}"
        return (make(None, "size", result),)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    except (RecursionError, MemoryError, SystemError):  # SystemError: two threads parsed at once
        return (make(None, "nesting"),)
    return Visitor(profile).visit(tree)


def bidirectional(code: str) -> tuple[Violation, ...]:
    """Return a violation for each bidirectional control character; a tree has no comments."""
    return tuple(
        Violation(
            line=line,
            column=column,
            rule="bidirectional",
            message=profiles.ADVICE["bidirectional"].format(
                column + 1, unicodedata.name(character), *[f"{ord(character):04X}"] * 2
            ),
        )
        for line, column, character in bidi.find(code, MAX_VIOLATIONS)
    )


def make(node: ast.AST | None, rule: str, *result: str) -> Violation:
    """Return a violation of `rule` at a node."""
    return Violation(
        line=getattr(node, "lineno", 1),
        column=getattr(node, "col_offset", 0),
        rule=rule,
        message=profiles.ADVICE[rule].format(*result),
    )


_LOOKS: dict[type[ast.AST], Look] = {}
"""Methods by the type of node that they check."""


def _looks_at(*kinds: type[ast.AST]) -> Callable[[Look], Look]:
    def keep(look: Look) -> Look:
        _LOOKS.update(dict.fromkeys(kinds, look))
        return look

    return keep


class Visitor:
    """One walk over one tree."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._found: list[Violation] = []
        self._caught: set[str] = set()
        self._asked: set[int] = set()
        """Nodes of `__class__` that are allowed: its name, a call, a comparison."""

    def visit(self, tree: ast.AST) -> tuple[Violation, ...]:
        """Return all violations, in the order of lines."""
        queue, count = [tree], 0
        while queue and len(self._found) < MAX_VIOLATIONS:
            node = queue.pop()
            count += 1
            if count > MAX_NODES:
                self._found.append(make(None, "size", f"more than {MAX_NODES:,} parts"))
                break
            if look := _LOOKS.get(type(node)):
                look(self, node)
            if reason := self._profile.syntax.get(type(node)):
                self._refuse(node, "syntax", *reason)
            queue.extend(reversed(list(ast.iter_child_nodes(node))))
        return tuple(sorted(self._found, key=lambda violation: (violation.line, violation.column)))

    def _refuse(self, node: ast.AST, rule: str, *details: str) -> None:
        self._found.append(make(node, rule, *details))

    @_looks_at(ast.Name)
    def _name(self, node: ast.Name) -> None:
        name = plain(node.id)
        if isinstance(node.ctx, ast.Load) and name in self._profile.calls:
            advice = profiles.CALL_ADVICE.get(name, profiles.OTHER_ADVICE)
            self._refuse(node, "call", name, advice)
        elif isinstance(node.ctx, ast.Load) and is_dunder(name):
            if name not in self._profile.readable:
                self._refuse(node, "identifier", name)
        else:
            self._bound(node, (name,))

    def _bound(self, node: ast.AST, names: Iterable[str | None]) -> None:
        """Check names that the code binds."""
        for name in map(plain, filter(None, names)):
            if is_dunder(name) and name not in words.DEFINABLE:
                self._refuse(node, "identifier", name)
            elif name in words.FRAMES:
                self._refuse(node, "frame", name)

    @_looks_at(ast.Attribute)
    def _attribute(self, node: ast.Attribute) -> None:
        name = plain(node.attr)
        if not name.startswith("_") or name in words.NOTES:
            self._asked.add(id(node.value))
        reading = isinstance(node.ctx, ast.Load)
        known = self._profile.readable if reading else words.SETTABLE | words.DEFINABLE
        if name in words.FRAMES:
            self._refuse(node, "frame", name)
        elif is_dunder(name) and name not in known:
            self._refuse(node, "attribute", name)
        elif name == "__class__" and id(node) not in self._asked:
            self._refuse(node, "class", name)
        elif name in self._profile.gadgets:
            self._refuse(node, "gadget", name)
        elif name == "obj" and isinstance(node.value, ast.Name) and node.value.id in self._caught:
            self._refuse(node, "exception-object", node.value.id)

    @_looks_at(ast.Call)
    def _call(self, node: ast.Call) -> None:
        self._asked.add(id(node.func))

    @_looks_at(ast.Compare)
    def _comparison(self, node: ast.Compare) -> None:
        self._asked.update(map(id, (node.left, *node.comparators)))

    @_looks_at(ast.Import)
    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(node, plain(alias.name))
            self._bound(node, (alias.asname,))

    @_looks_at(ast.ImportFrom)
    def _import_from(self, node: ast.ImportFrom) -> None:
        module = plain(node.module or ".")
        if module == "__future__" and not node.level:
            return
        self._module(node, "." * node.level + module)
        for alias in node.names:
            name = plain(alias.name)
            if name == "*":
                self._refuse(node, "star-import", module)
            elif self._refused(f"{module}.{name}"):
                self._refuse(node, "module", f"{module}.{name}")
            elif name in self._profile.gadgets or name in self._profile.calls:
                self._refuse(node, "gadget", name)
            self._bound(node, (alias.asname or name,))

    def _module(self, node: ast.AST, name: str) -> None:
        offered = self._profile.offered_modules
        unknown = offered is not None and name not in offered and name != "urllib"
        if unknown or name.startswith((".", "_")) or self._refused(name):
            self._refuse(node, "module", name)

    def _refused(self, module: str) -> bool:
        parts = module.split(".")
        heads = {".".join(parts[:size]) for size in range(1, len(parts) + 1)}
        return bool(heads & self._profile.refused_modules)

    @_looks_at(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._bound(node, (node.name,))

    @_looks_at(ast.arg)
    def _argument(self, node: ast.arg) -> None:
        self._bound(node, (node.arg,))

    @_looks_at(ast.keyword)
    def _keyword(self, node: ast.keyword) -> None:
        self._bound(node, (node.arg,))

    @_looks_at(ast.Global, ast.Nonlocal)
    def _declared(self, node: ast.Global | ast.Nonlocal) -> None:
        self._bound(node, node.names)

    @_looks_at(ast.ExceptHandler)
    def _handler(self, node: ast.ExceptHandler) -> None:
        self._bound(node, (node.name,))
        if node.name and self._profile.looks_at_texts:
            self._caught.add(node.name)

    @_looks_at(ast.MatchAs, ast.MatchStar)
    def _capture(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self._bound(node, (node.name,))

    @_looks_at(ast.MatchMapping)
    def _mapping(self, node: ast.MatchMapping) -> None:
        self._bound(node, (node.rest,))

    @_looks_at(ast.MatchClass)
    def _class_pattern(self, node: ast.MatchClass) -> None:
        for name in map(plain, node.kwd_attrs):
            if name.startswith("_") or name in words.FRAMES | words.AMBIGUOUS:
                self._refuse(node, "pattern", name)

    @_looks_at(ast.Assign)
    def _assignment(self, node: ast.Assign) -> None:
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        for name in map(plain, names):
            if name == "__match_args__" and not is_plain_tuple(node.value):
                self._refuse(node, "match-args", name)

    @_looks_at(ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
    def _other_assignment(self, node: ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> None:
        target = node.target
        if isinstance(target, ast.Name) and is_dunder(plain(target.id)):
            self._refuse(node, "identifier", target.id)
        if isinstance(node, ast.AugAssign) and isinstance(target, ast.Attribute):
            name = plain(target.attr)
            if name in words.AMBIGUOUS or is_dunder(name):
                self._refuse(node, "assignment", name)

    @_looks_at(ast.Subscript)
    def _subscript(self, node: ast.Subscript) -> None:
        key = node.slice
        if not (self._profile.looks_at_texts and isinstance(key, ast.Constant)):
            return
        name = plain(key.value) if isinstance(key.value, str) else ""
        if is_dunder(name) and name not in words.READABLE:
            self._refuse(node, "subscript", name)

    @_looks_at(ast.Constant)
    def _constant(self, node: ast.Constant) -> None:
        if not self._profile.looks_at_texts or not isinstance(node.value, str):
            return
        if "{" in node.value and (match := _WALK.search(unicodedata.normalize("NFKC", node.value))):
            self._refuse(node, "format-string", match[0][:60] + "}")


def plain(name: str) -> str:
    """Return a name in the form that Python's parser gives it (NFKC)."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)


def is_dunder(name: str) -> bool:
    """Return whether a name begins and ends with two underscores."""
    return name.startswith("__") and name.endswith("__") and len(name) > 4


def is_plain_tuple(node: ast.expr) -> bool:
    """Return whether a node is a tuple of harmless names, each written out."""
    if not isinstance(node, ast.Tuple | ast.List):
        return False
    texts = [element.value for element in node.elts if isinstance(element, ast.Constant)]
    if len(texts) < len(node.elts):
        return False
    return all(
        isinstance(text, str) and not text.startswith("_") and is_harmless(text) for text in texts
    )


def is_harmless(name: str) -> bool:
    """Return whether an attribute of that name is harmless on every object."""
    return plain(name) not in words.FRAMES | words.AMBIGUOUS

"""Split files into units: functions and classes of code, sections, else windows of lines."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from atoll.agent.retrieval.sections import (
    LONGEST_CODE,
    LONGEST_SECTION,
    bounded,
    section_units,
    windows,
)
from atoll.agent.retrieval.sources import SourceText
from atoll.agent.retrieval.types import DOC, corpus_of, grammar_of, needs_parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.agent.retrieval.types import Unit


_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def python_units(source: SourceText) -> list[Unit]:
    """Return the units of a module.

    Raise ValueError, SyntaxError, RecursionError or MemoryError if it cannot be parsed.
    """
    if "\r" in source.text.replace("\r\n", ""):
        raise ValueError("a lone carriage return: its lines are not those of the syntax tree")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escape sequences
        tree = ast.parse(source.text)
    units = list(_units(source, tree.body, ""))
    return [*units, *source.rest(units, ast.get_docstring(tree) or "")]


def _units(source: SourceText, body: Sequence[ast.AST], owner: str) -> Iterator[Unit]:
    for node in _definitions(body):
        if isinstance(node, ast.ClassDef):
            yield _class_unit(source, node, owner)
            yield from _units(source, node.body, f"{owner}{node.name}.")
        else:
            yield _function_unit(source, node, owner)


def _definitions(body: Sequence[ast.AST]) -> Iterator[_Definition]:
    """Yield the definitions of this level, also those inside of an `if` or a `try`."""
    for node in body:
        if isinstance(node, _Definition):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions(list(ast.iter_child_nodes(node)))
        elif isinstance(node, ast.ExceptHandler):
            yield from _definitions(node.body)


def _function_unit(source: SourceText, node: _Function, owner: str) -> Unit:
    return source.unit(
        "method" if owner else "function",
        owner + node.name,
        _lines(node),
        signature=_signature(source, node),
        doc=ast.get_docstring(node) or "",
    )


def _class_unit(source: SourceText, node: ast.ClassDef, owner: str) -> Unit:
    """Return a class with only the signatures of its methods: each method is its own unit."""
    parts = [source.lines(_first_line(node), _first_line(node.body[0]) - 1)]
    for child in node.body:
        if isinstance(child, _Definition):
            parts.append(f"    {_signature(source, child)}\n")
        else:
            parts.append(source.lines(_first_line(child), child.end_lineno or child.lineno))
    return source.unit(
        "class",
        owner + node.name,
        _lines(node),
        signature=_signature(source, node),
        doc=ast.get_docstring(node) or "",
        body="".join(parts),
    )


def _signature(source: SourceText, node: _Definition) -> str:
    """Return the source from `def` to the colon; the whole line of a one-line function."""
    last = max(node.lineno, _first_line(node.body[0]) - 1)
    lines = source.lines(node.lineno, last).splitlines()
    code = " ".join(line for line in lines if not line.lstrip().startswith("#"))
    return " ".join(code.split()).rstrip(":")


def _lines(node: _Definition) -> tuple[int, int]:
    return _first_line(node), node.end_lineno or node.lineno


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, _Definition) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


_FUNCTIONS = frozenset(
    """
    arrow_function class_method_definition constructor_declaration function_declaration
    function_definition function_expression function_item function_statement
    generator_function_declaration let_binding method method_declaration method_definition
    modifier_definition singleton_method
""".split()
)
_CLASSES = frozenset(
    """
    abstract_class_declaration class class_declaration class_definition class_implementation
    class_interface class_specifier class_statement contract_declaration enum_declaration
    enum_item enum_specifier impl_item interface_declaration internal_module library_declaration
    mod_item module module_binding module_definition namespace_declaration namespace_definition
    object_declaration object_definition protocol_declaration record_declaration
    struct_declaration struct_definition struct_item struct_specifier trait_declaration
    trait_definition trait_item type_alias_declaration type_spec
""".split()
)
_NAME_FIELDS = ("name", "declarator", "function", "type", "pattern")
_OWNER_NAME_FIELDS = ("name", "lhs", "left", "key", "pattern")
_NAME_KINDS = re.compile(r"identifier|name\b|constant|simple_name|\w+_name|type_head|signature")
_BODIES = ("body", "script_block_body")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_MAX_NODES, _DEEPEST = 200_000, 16
_LONGEST_DOC = 4_000


def tree_units(source: SourceText, grammar: str) -> list[Unit]:
    """Return the units of a file; none if its tree has no node of a known kind."""
    from semble_grammars import get_parser  # noqa: PLC0415 - an extra

    # Encoded as one byte for each character, so that the tree's offsets are those of the text.
    tree = get_parser(grammar).parse(_NOT_ASCII.sub("x", source.text).encode("ascii"))
    pieces = list(_pieces(source, tree.root_node))
    units = [_unit(source, piece) for piece in pieces]
    for piece, unit in zip(pieces, units, strict=True):
        piece.unit = unit
    units = [_reduced(source, piece) for piece in pieces]
    return [*units, *source.rest(units)] if units else []


@dataclass(slots=True, eq=False)
class _Piece:
    """A node that becomes a unit."""

    node: Any
    name: str
    is_class: bool
    start: int
    inner: list[_Piece] = field(default_factory=list)
    unit: Unit | None = None


def _pieces(source: SourceText, root: Any) -> Iterator[_Piece]:
    """Yield definitions, outer ones first; those inside a function belong to the function."""
    stack: list[tuple[Any, str, _Piece | None, int]] = [(root, "", None, 0)]
    for _ in range(_MAX_NODES):
        if not stack:
            return
        node, prefix, owner, depth = stack.pop()
        piece = _piece(source, node, prefix) if depth else None
        if piece:
            yield piece
            if owner:
                owner.inner.append(piece)
            prefix, owner = f"{piece.name}.", piece
        if depth < _DEEPEST and node.type not in _FUNCTIONS:
            children = reversed(node.named_children)
            stack.extend((child, prefix, owner, depth + 1) for child in children)


def _piece(source: SourceText, node: Any, prefix: str) -> _Piece | None:
    if node.type not in _FUNCTIONS and node.type not in _CLASSES:
        return None
    name = _name(source, node)
    if not name or node.parent.type == "variant_declaration":  # OCaml's constructors are values
        return None
    start = _statement(node).start_byte
    return _Piece(node, prefix + name, node.type in _CLASSES, start)


def _statement(node: Any) -> Any:
    """Return the whole statement of a definition, such as `export const f = () => ...`.

    Only if it begins on the definition's line.
    """
    parent = node.parent
    while parent is not None and parent.parent is not None:
        same_line = parent.start_point[0] == node.start_point[0]
        if not same_line or parent.type in _CLASSES or _is_body(parent):
            break
        node, parent = parent, parent.parent
    return node


def _is_body(node: Any) -> bool:
    return str(node.type).endswith(("body", "list", "block", "closure", "object", "structure"))


def _unit(source: SourceText, piece: _Piece) -> Unit:
    node, end = piece.node, piece.node.end_byte
    kind = "class" if piece.is_class else "method" if "." in piece.name else "function"
    doc = _doc(source, piece)
    body = next((child for child in map(node.child_by_field_name, _BODIES) if child), None)
    until = body.start_byte if body else source.text.find("\n", piece.start, end)
    signature = source.text[piece.start : until if until > 0 else end].rstrip(" \t\r\n{")
    return source.span(kind, piece.name, (piece.start, end), signature=signature, doc=doc)


def _reduced(source: SourceText, piece: _Piece) -> Unit:
    """Return a class without the members that are units of their own."""
    assert piece.unit
    unit = piece.unit
    if not piece.inner:
        return unit
    inner = [child.unit for child in piece.inner if child.unit]
    body = source.without(inner, unit.start, unit.end)
    body = "\n".join([body.rstrip(), *(unit.signature for unit in inner)])
    parts = {"signature": unit.signature, "doc": unit.doc, "body": body}
    return source.span(unit.kind, unit.name, (unit.start, unit.end), **parts)


def _doc(source: SourceText, piece: _Piece) -> str:
    """Return the comments directly above a definition."""
    first, above = piece.start, _statement(piece.node).prev_named_sibling
    while above is not None and "comment" in above.type:
        if "\n\n" in source.text[above.end_byte : first] or piece.start - first > _LONGEST_DOC:
            break
        first, above = above.start_byte, above.prev_named_sibling
    return source.text[first : piece.start].strip()[:_LONGEST_DOC]


def _name(source: SourceText, node: Any) -> str:
    """Return the name of a definition, or of the variable that it is assigned to."""
    result = _named(node, _NAME_FIELDS)
    if result is None and node.parent is not None and node.type in _FUNCTIONS:
        parent = node.parent
        result = _field(parent, _OWNER_NAME_FIELDS)
        if result is None and parent.prev_named_sibling is not None:
            result = _field(parent.prev_named_sibling, ("name",))  # Lua: a list of names, of values
    if result is None or result.id == node.id:
        return ""
    return " ".join(source.text[result.start_byte : result.end_byte].split())


def _named(node: Any, fields: tuple[str, ...]) -> Any:
    result = _field(node, fields)
    while result is not None and (inner := result.child_by_field_name("declarator")):
        result = inner  # C: a pointer to a function of the name
    if result is None and not node.type.endswith(("expression", "arrow_function")):
        kinds = (child for child in node.named_children[:4] if _NAME_KINDS.match(child.type))
        result = next(kinds, None)
    return result


def _field(node: Any, fields: tuple[str, ...]) -> Any:
    for name in fields:
        result = node.child_by_field_name(name)
        if result is not None and result.is_named:
            return result
    return None


_DOES_NOT_PARSE = (SyntaxError, ValueError, RecursionError, MemoryError)


def chunk(path: str, text: str, most: int) -> list[Unit]:
    """Return the units of a file by its language's parser, which a hostile file may crash.

    Call it in a process that may crash.
    """
    source = SourceText(path, text)
    if not needs_parser(path):
        return chunk_plainly(path, text, most)
    try:
        units = _parsed(source)
    except _DOES_NOT_PARSE:
        units = []
    whole = bounded(source, units or windows(source), LONGEST_CODE)
    return list(islice(whole, most))


def chunk_plainly(path: str, text: str, most: int) -> list[Unit]:
    """Return units without a parser: sections of a document, windows of other files."""
    source = SourceText(path, text)
    if corpus_of(path) == DOC:
        units = section_units(source) or windows(source, "section")
        return list(islice(bounded(source, units, LONGEST_SECTION), most))
    return list(islice(windows(source), most))


def _parsed(source: SourceText) -> list[Unit]:
    grammar = grammar_of(source.path)
    return tree_units(source, grammar) if grammar else python_units(source)

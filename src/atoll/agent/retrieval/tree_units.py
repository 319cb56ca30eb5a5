"""Splits other languages into functions and classes, by tree-sitter (extra `retrieval`).

It knows the kinds of nodes that many grammars share; other languages are split into windows.
Nothing here recurses, because a hostile file decides how deep it nests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.retrieval.source import Source
    from atoll.agent.retrieval.types import Unit

_FUNCTIONS = frozenset({
    "arrow_function", "class_method_definition", "constructor_declaration", "function_declaration",
    "function_definition", "function_expression", "function_item", "function_statement",
    "generator_function_declaration", "let_binding", "method", "method_declaration",
    "method_definition", "modifier_definition", "singleton_method",
})  # fmt: skip
_CLASSES = frozenset({
    "abstract_class_declaration", "class", "class_declaration", "class_definition",
    "class_implementation", "class_interface", "class_specifier", "class_statement",
    "contract_declaration", "enum_declaration", "enum_item", "enum_specifier", "impl_item",
    "interface_declaration", "internal_module", "library_declaration", "mod_item", "module",
    "module_binding", "module_definition", "namespace_declaration", "namespace_definition",
    "object_declaration", "object_definition", "protocol_declaration", "record_declaration",
    "struct_declaration", "struct_definition", "struct_item", "struct_specifier",
    "trait_declaration", "trait_definition", "trait_item", "type_alias_declaration",
    "type_spec",
})  # fmt: skip
_NAME_FIELDS = ("name", "declarator", "function", "type", "pattern")
_OWNER_NAME_FIELDS = ("name", "lhs", "left", "key", "pattern")
_NAME_KINDS = re.compile(r"identifier|name\b|constant|simple_name|\w+_name|type_head|signature")
_BODIES = ("body", "script_block_body")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_MOST_NODES, _DEEPEST = 200_000, 16
_LONGEST_DOC = 4_000


def tree_units(source: Source, grammar: str) -> list[Unit]:
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


def _pieces(source: Source, root: Any) -> Iterator[_Piece]:
    """Yield definitions, outer ones first; those inside a function belong to the function."""
    stack: list[tuple[Any, str, _Piece | None, int]] = [(root, "", None, 0)]
    for _ in range(_MOST_NODES):
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


def _piece(source: Source, node: Any, prefix: str) -> _Piece | None:
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


def _unit(source: Source, piece: _Piece) -> Unit:
    node, end = piece.node, piece.node.end_byte
    kind = "class" if piece.is_class else "method" if "." in piece.name else "function"
    doc = _doc(source, piece)
    body = next((one for one in map(node.child_by_field_name, _BODIES) if one), None)
    until = body.start_byte if body else source.text.find("\n", piece.start, end)
    signature = source.text[piece.start : until if until > 0 else end].rstrip(" \t\r\n{")
    return source.span(kind, piece.name, (piece.start, end), signature=signature, doc=doc)


def _reduced(source: Source, piece: _Piece) -> Unit:
    """Return a class without the members that are units of their own."""
    assert piece.unit
    unit = piece.unit
    if not piece.inner:
        return unit
    inner = [one.unit for one in piece.inner if one.unit]
    body = source.without(inner, unit.start, unit.end)
    body = "\n".join([body.rstrip(), *(one.signature for one in inner)])
    parts = {"signature": unit.signature, "doc": unit.doc, "body": body}
    return source.span(unit.kind, unit.name, (unit.start, unit.end), **parts)


def _doc(source: Source, piece: _Piece) -> str:
    """Return the comments directly above a definition."""
    first, above = piece.start, _statement(piece.node).prev_named_sibling
    while above is not None and "comment" in above.type:
        if "\n\n" in source.text[above.end_byte : first] or piece.start - first > _LONGEST_DOC:
            break
        first, above = above.start_byte, above.prev_named_sibling
    return source.text[first : piece.start].strip()[:_LONGEST_DOC]


def _name(source: Source, node: Any) -> str:
    """Return the name of a definition, or of the variable that it is assigned to."""
    found = _named(node, _NAME_FIELDS)
    if found is None and node.parent is not None and node.type in _FUNCTIONS:
        parent = node.parent
        found = _field(parent, _OWNER_NAME_FIELDS)
        if found is None and parent.prev_named_sibling is not None:
            found = _field(parent.prev_named_sibling, ("name",))  # Lua: a list of names, of values
    if found is None or found.id == node.id:
        return ""
    return " ".join(source.text[found.start_byte : found.end_byte].split())


def _named(node: Any, fields: tuple[str, ...]) -> Any:
    found = _field(node, fields)
    while found is not None and (inner := found.child_by_field_name("declarator")):
        found = inner  # C: a pointer to a function of the name
    if found is None and not node.type.endswith(("expression", "arrow_function")):
        kinds = (child for child in node.named_children[:4] if _NAME_KINDS.match(child.type))
        found = next(kinds, None)
    return found


def _field(node: Any, fields: tuple[str, ...]) -> Any:
    for name in fields:
        found = node.child_by_field_name(name)
        if found is not None and found.is_named:
            return found
    return None

"""The guest's files stand alone: standard library only, the syntax of CPython 3.8."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from atoll import guest

FILES = sorted(Path(guest.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-2:]))
def test_the_syntax_is_that_of_python_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-2:]))
def test_only_the_standard_library_is_imported(path):
    tree = ast.parse(path.read_text())
    tried = {id(one) for node in ast.walk(tree) if _does_without(node) for one in node.body}
    for node in ast.walk(tree):
        if id(node) in tried:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        assert all(
            name.split(".")[0] in {*sys.stdlib_module_names, "__future__"} for name in names
        ), names


def _does_without(node: ast.AST) -> bool:
    """Whether this is a `try` that goes another way if an import fails."""
    handlers = node.handlers if isinstance(node, ast.Try) else []
    return any(isinstance(h.type, ast.Name) and h.type.id == "ImportError" for h in handlers)

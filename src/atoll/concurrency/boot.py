"""How a Python process of Atoll's own starts: `python -c CODE ROOT ARGUMENTS...`."""

from __future__ import annotations

from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
"""The folder that the package `atoll` is in."""


def code(module: str) -> str:
    """Return the code that calls `main` of a module with the arguments.

    ROOT, or where a jail shows it, comes last in sys.path and leaves it before `main` runs.
    """
    return (
        f"import sys; sys.path.append(sys.argv[1]); from {module} import main; "
        "sys.path.remove(sys.argv[1]); main(*sys.argv[2:])"
    )

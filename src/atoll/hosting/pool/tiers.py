"""What zygotes have imported, in tiers; and which tier a piece of code wants.

A fork costs more the more is imported, so code that needs little gets a small one.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

STANDARD = (
    "import json, csv, datetime, collections, itertools, functools, math, random, re, os, sys",
)
NUMERIC = ("import numpy as np", "import pandas as pd")
FULL = (
    "from scipy import stats, optimize, interpolate",
    "from sklearn import linear_model, tree, ensemble, cluster",
    "from sklearn import preprocessing, model_selection, metrics",
    "import statsmodels.api as sm",
    "import matplotlib, matplotlib.pyplot as plt",
    "import seaborn as sns",
)

PACKAGES = "packages"
"""The tier that has imported the packages by name that a sandbox asks for; only if it is named."""

MAKERS = frozenset({"exec", "eval", "globals", "locals", "vars"})
"""Functions by which code uses names that do not stand in it."""

MAX_READ = 20_000
"""Characters of code that are read to choose a tier: longer code is not parsed for that."""

Tiers = Mapping[str, tuple[str, ...]]
TIERS: Tiers = {"bare": STANDARD, "numeric": STANDARD + NUMERIC, "full": STANDARD + NUMERIC + FULL}
"""From small to large: each holds all that the one before it does."""


def with_packages(tiers: Tiers, modules: Iterable[str]) -> Tiers:
    """Return the tiers of a pool whose guests have packages by name, with one that imports them.

    SECURITY: importing runs the packages' code in the zygote, which has rights that no guest has.
    So it is a tier of its own, for those who ask for it: preload="packages".
    """
    return {**tiers, PACKAGES: (*STANDARD, *(f"import {module}" for module in modules))}


def choose(code: str, tiers: Tiers = TIERS) -> str:
    """Return the smallest tier that has imported what the code uses."""
    known = frozenset().union(*map(_offered, tiers.values()))
    wanted = _used(code) & known
    return next((name for name in tiers if wanted <= _offered(tiers[name])), largest(tiers))


def makes_code(code: str) -> bool:
    """Return whether the code may use names that cannot be seen in it."""
    return bool(_used(code) & MAKERS)


def largest(tiers: Tiers) -> str:
    """Return the last tier's name."""
    return list(tiers)[-1]


@lru_cache(maxsize=64)
def _offered(lines: tuple[str, ...]) -> frozenset[str]:
    """Return all that the import statements of a tier make available."""
    return frozenset().union(*map(offers, lines))


def import_statement(text: str) -> str:
    """Return an import statement as it is, and the name of a module as the statement for it."""
    text = text.strip()
    return f"import {text}" if all(part.isidentifier() for part in text.split(".")) else text


def offers(line: str) -> set[str]:
    """Packages and names that an import statement makes available; ConfigError if it is not one."""
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError):
        statement = ast.Pass()
    if isinstance(statement, ast.Import):
        packages = {alias.name.partition(".")[0] for alias in statement.names}
    elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        packages = {statement.module.partition(".")[0]}
    else:
        raise ConfigError(f"not an import statement: {line!r}")
    return packages | {alias.asname or alias.name for alias in statement.names}


def _used(code: str) -> frozenset[str]:
    """Return the packages that the code imports anywhere and the names it reads.

    Nothing if it does not parse. Code that is too long to be read may make code, as far as is
    known.
    """
    return _read(code) if len(code) <= MAX_READ else MAKERS


@lru_cache(maxsize=256)  # at most MAX_READ characters each
def _read(code: str) -> frozenset[str]:
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Import):
            used |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            used.add(node.module.partition(".")[0])
    return frozenset(used)

"""The options about packages by name: of `atoll env`, and of the commands that run code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.option_table import add_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from atoll.cli.parser import Parser

_PACKAGES = """
    --package PACKAGE ...  a package by name, such as polars or duckdb==1.5, or @NAME for an
        environment of `atoll env`; repeatable
    --allow-source         build packages that have no wheel, in a jail: this runs their build code
"""
_AFTER_PACKAGES = """
    --python PATH  the interpreter that sandboxes will use
    --refresh      resolve again, to newer versions if there are any
"""


def add_packages(group: argparse._ActionsContainer) -> None:
    """Add the options that name packages."""
    add_options(group, _PACKAGES, package={"dest": "packages"})


def add_env(command: Callable[[str, str], Parser]) -> None:
    """Add the actions of `atoll env`; `command` adds one by its name and a brief text."""
    create = command("create", "resolve packages and build an environment")
    add_options(create, "NAME  the name that sandboxes use: --package @NAME")
    add_packages(create)
    add_options(create, _AFTER_PACKAGES)
    listing = command("list", "list the environments, with sizes and when they were used")
    show = command("show", "print the packages of an environment, with versions and hashes")
    remove = command("remove", "delete environments that are not in use")
    add_options(show, "NAME  a name, or the beginning of a hash")
    add_options(remove, "NAME ...  a name, or the beginning of a hash")
    for action in (listing, show):
        add_options(action, "--json  print JSON")

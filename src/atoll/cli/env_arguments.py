"""The options about packages by name: of `atoll env`, and of the commands that run code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from atoll.cli.parser import Parser


def add_packages(group: argparse._ActionsContainer) -> None:
    """Add the options that name packages."""
    group.add_argument(
        "--package",
        dest="packages",
        metavar="PACKAGE",
        action="append",
        default=[],
        help="a package by name, such as polars or duckdb==1.5, or @NAME for an environment of "
        "`atoll env`; repeatable",
    )
    group.add_argument(
        "--allow-source",
        action="store_true",
        help="build packages that have no wheel, in a jail: this runs their build code",
    )


def add_env(command: Callable[[str, str], Parser]) -> None:
    """Add the actions of `atoll env`; `command` adds one by its name and a brief text."""
    create = command("create", "resolve packages and build an environment")
    create.add_argument("name", metavar="NAME", help="the name that sandboxes use: --package @NAME")
    add_packages(create)
    create.add_argument("--python", metavar="PATH", help="the interpreter that sandboxes will use")
    create.add_argument(
        "--refresh", action="store_true", help="resolve again, to newer versions if there are any"
    )
    listing = command("list", "list the environments, with sizes and when they were used")
    show = command("show", "print the packages of an environment, with versions and hashes")
    remove = command("remove", "delete environments that are not in use")
    for action in (show, remove):
        many = "+" if action is remove else None
        action.add_argument(
            "name", metavar="NAME", nargs=many, help="a name, or the beginning of a hash"
        )
    for action in (listing, show):
        action.add_argument("--json", action="store_true", help="print JSON")

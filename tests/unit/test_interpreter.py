"""Which Python a guest gets: what is refused, and what of it a jail shows."""

from __future__ import annotations

import sys

import pytest

from atoll.errors import BackendUnavailableError
from atoll.launch import interpreter

FREE_THREADED = """#!/bin/sh
[ "$1" = --version ] && exec {python} --version
exec {python} -I -c 'import sys; sys.abiflags = "t"; exec(sys.argv.pop(1))' "$3" "$4"
"""
"""A Python that says what a free-threaded one says; no such build can be installed here."""


def test_a_free_threaded_build_is_refused_in_words(tmp_path):
    path = tmp_path / "python3.14t"
    path.write_text(FREE_THREADED.format(python=sys.executable))
    path.chmod(0o755)
    with pytest.raises(
        BackendUnavailableError, match="free-threaded build of Python, which is not"
    ):
        interpreter.resolve(str(path))


@pytest.mark.parametrize(
    ("text", "silenced"),
    [
        ("/somewhere/else/src\n", True),
        ("# editable\n\n../../../../src\n", True),
        ("import a_hook\n/somewhere/else/src\n", False),
        ("/somewhere/else/src\n./inside\n", False),
        ("/usr/lib/python3/dist-packages\n", False),
    ],
)
def test_pth_files_that_name_only_what_a_jail_does_not_show_are_silenced(tmp_path, text, silenced):
    """From Python 3.15 on, each start of a child would print a line for each of their folders."""
    prefix = tmp_path / "venv"
    site = prefix / "lib" / "python3.15" / "site-packages"
    site.mkdir(parents=True)
    (site / "_editable.pth").write_text(text)
    shown = (str(prefix), "/usr")
    expected = (str(site / "_editable.pth"),) if silenced else ()
    assert interpreter._editable_installs(str(prefix), (3, 15, 2), shown) == expected
    assert interpreter._editable_installs(str(prefix), (3, 14, 9), shown) == ()

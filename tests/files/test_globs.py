"""Patterns: what they fit, and that none of them takes long."""

from __future__ import annotations

import fnmatch
import itertools
import random

import pytest

from atoll.guest.shared.globs import Glob


@pytest.mark.spec("R3.9")
@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("*.py", ["a.py", ".py", ".a.py"], ["a/b.py", "a.pyc"]),
        ("**", ["a", "a/b", "a/b/c"], []),
        ("**/*.py", ["a.py", "a/b.py", "a/b/c.py"], ["a.py/b"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a", "b", "a/bb"]),
        ("**/a/**/b", ["a/b", "x/a/y/b", "a/a/b/b"], ["b/a"]),
        ("a?c", ["abc", "a.c"], ["ac", "a/c"]),
        ("[a-c]x", ["ax", "cx"], ["dx"]),
        ("[!a]x", ["bx"], ["ax", "x"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("[]]", ["]"], ["["]),
        ("[", ["["], ["a"]),
        ("{a,b/c}.{x,y}", ["a.x", "a.y", "b/c.x"], ["b.x"]),
        ("{a", ["{a"], ["a"]),
        ("a{b}", ["a{b}"], ["ab"]),
        ("./a/", ["a"], ["b"]),
        ("a.b+(c)|d$", ["a.b+(c)|d$"], ["axb"]),
        ("*a*b*c", ["abc", "xaxbxc", "ababc"], ["acb", "abcd"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("new\n*", ["new\nline"], ["new"]),
    ],
)
def test_what_a_pattern_fits(pattern, fits, others):
    glob = Glob(pattern)
    assert [path for path in fits if not glob.matches(path)] == []
    assert [path for path in others if glob.matches(path)] == []


def test_names_fit_as_the_standard_library_says():
    dice = random.Random(5)
    for _ in range(3000):
        pattern = "".join(dice.choice("ab*?[]!-") for _ in range(dice.randrange(1, 8)))
        if "[" in pattern and "]" in pattern:
            continue  # where we are more exact
        glob = Glob(pattern)
        for size in range(4):
            for letters in itertools.product("ab]", repeat=size):
                name = "".join(letters)
                if name:
                    assert glob.matches(name) == fnmatch.fnmatchcase(name, pattern), (pattern, name)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 60 + "*b", "a" * 250),
        ("**/a/" * 30 + "b", "a/" * 190 + "a"),
        ("**/*a*a*a*a/" * 20 + "b", "aaaaaaaaaaaa/" * 190 + "a"),
        ("?" * 200 + "*" * 50, "a" * 199),
    ],
)
def test_no_pattern_takes_long(pattern, path):
    assert not Glob(pattern).matches(path)


def test_too_many_alternatives_are_refused():
    with pytest.raises(ValueError, match="more than 256 alternatives"):
        Glob("{a,b}" * 9)

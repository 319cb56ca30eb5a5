"""Patterns for paths: `*`, `?`, `[a-z]`, `{a,b}` within a name, `**` over any number of folders."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

MOST_ALTERNATIVES = 256
_ANY_FOLDERS = "(?:[^/]+/)*"


def compile_glob(pattern: str) -> re.Pattern[str]:
    """What a relative path is matched with; ValueError if the pattern makes no sense."""
    alternatives = [_translate(one) for one in _braces(pattern.strip("/"))]
    return re.compile("(?:{})".format("|".join(alternatives)), re.DOTALL)


def chooser(pattern: str | None) -> Callable[[str], bool]:
    """Whether a path is meant; a pattern without a folder in it is for names anywhere."""
    if pattern is None:
        return lambda _path: True
    fits = compile_glob(pattern).fullmatch
    if "/" in pattern.strip("/"):
        return lambda path: fits(path) is not None
    return lambda path: fits(path.rpartition("/")[2]) is not None


def _translate(pattern: str) -> str:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    text = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            text += _ANY_FOLDERS + "[^/]+" if last else _ANY_FOLDERS
        else:
            text += _name(part) + ("" if last else "/")
    return text


def _name(part: str) -> str:
    """One name: stars beside each other are one, so that matching cannot blow up."""
    text, at = "", 0
    while at < len(part):
        char = part[at]
        end = part.find("]", at + 2) if char == "[" else -1
        if char == "*":
            text += "" if text.endswith("[^/]*") else "[^/]*"
        elif char == "?":
            text += "[^/]"
        elif end > 0:
            text += _one_of(part[at + 1 : end])
            at = end
        else:
            text += re.escape(char)
        at += 1
    return text


def _one_of(inside: str) -> str:
    negated = inside[:1] in ("!", "^")
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[1:] if negated else inside)
    return "(?!/)[{}{}]".format("^" if negated else "", body)


def _braces(pattern: str) -> list[str]:
    """Every way to choose from `{a,b}`; a brace that is not closed stands for itself."""
    found, done = [pattern], []
    while found:
        one = found.pop()
        start, end = _innermost(one)
        if start < 0:
            done.append(one)
            continue
        head, tail = one[:start], one[end + 1 :]
        found += [head + choice + tail for choice in one[start + 1 : end].split(",")]
        if len(found) + len(done) > MOST_ALTERNATIVES:
            raise ValueError("the pattern has more than {} alternatives".format(MOST_ALTERNATIVES))
    return done


def _innermost(pattern: str) -> tuple[int, int]:
    end = pattern.find("}")
    while end >= 0:
        start = pattern.rfind("{", 0, end)
        if start >= 0 and "," in pattern[start:end]:
            return start, end
        end = pattern.find("}", end + 1)
    return -1, -1

"""Finds bidirectional control characters, by which code looks different from what it does.

An editor shows text after them in another order, so that what looks like a comment may be code
(CVE-2021-42574, "trojan source"). Python accepts them in comments and strings.
"""

from __future__ import annotations

CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def find(code: str, most: int) -> list[tuple[int, int, str]]:
    """Return the first `most` of them: line from 1, column from 0, character."""
    if code.isascii() or not any(control in code for control in CONTROLS):
        return []
    result: list[tuple[int, int, str]] = []
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, 1):
        if line.isascii():
            continue
        for column, character in enumerate(line):
            if character in CONTROLS:
                result.append((number, column, character))
                if len(result) == most:
                    return result
    return result


def warning(code: str) -> str:
    """Return a line, with its end, that warns of the first of them; empty without one."""
    for line, _, character in find(code, 1):
        return (
            "warning: line {} has a bidirectional control character (U+{:04X}): "
            "the code may not be what it looks like\n".format(line, ord(character))
        )
    return ""

"""Filters of system calls as classic BPF: an allow-list, with rules on the arguments of some calls.

SECURITY: the default is refusal. A foreign architecture's calls end the process. What wants a
privilege answers EPERM. What is not listed answers ENOSYS, as an old kernel would, so that
libraries take their other way, or as said.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

from atoll.jail.walls import syscalls
from atoll.jail.walls.syscall_table import ALLOWED

if TYPE_CHECKING:
    from collections.abc import Iterable

LOAD, EQUAL, AT_LEAST, ANY_BIT, JUMP, RETURN = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06
ALLOW, _KILL, ASK = 0x7FFF0000, 0x80000000, 0x7FC00000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_NUMBER_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16
_LONGEST_TEST = 255
"""How far a test can jump."""

Instruction = tuple[int, int, int, int]
Span = tuple[int, list[Instruction]]
"""The first of a row of numbers, and the steps that each of them takes."""


def assemble(
    allowed: dict[str, int],
    rules: dict[str, list[Instruction]],
    asked: Iterable[int] = (),
    otherwise: int = errno.ENOSYS,
    refused: Iterable[int] = (),
) -> bytes:
    """The program that lets `allowed` calls through, each as its rule says if it has one.

    The numbers of `asked` notify the listener; those of `refused` answer EPERM.
    """
    program = [
        (LOAD, 0, 0, _ARCH_AT),
        (EQUAL, 1, 0, _AUDIT_ARCH[syscalls.ARCH]),
        (RETURN, 0, 0, _KILL),
        (LOAD, 0, 0, _NUMBER_AT),
        (AT_LEAST, 0, 1, _X32),
        (RETURN, 0, 0, _KILL),
    ]
    steps = {number: [(RETURN, 0, 0, ASK)] for number in asked}
    steps |= {number: [(RETURN, 0, 0, refuse(errno.EPERM))] for number in refused}
    allow = [(RETURN, 0, 0, ALLOW)]
    steps |= {number: rules.get(name, allow) for name, number in allowed.items()}
    program += _search(_spans(steps, [(RETURN, 0, 0, refuse(otherwise))]))
    return b"".join(struct.pack("HBBI", code, yes, no, k) for code, yes, no, k in program)


def numbers(table: dict[str, tuple[int | None, int | None]] = ALLOWED) -> dict[str, int]:
    """The calls of a table that this architecture has."""
    column = 0 if syscalls.ARCH == "x86_64" else 1
    pairs = ((name, numbers[column]) for name, numbers in table.items())
    return {name: number for name, number in pairs if number is not None}


def refuse(code: int) -> int:
    """The filter's answer that fails a call with errno `code`."""
    return 0x00050000 | code


def only_values(arg: int, good: tuple[int, ...], code: int) -> list[Instruction]:
    """A rule: the argument is one of these."""
    tests = [(EQUAL, len(good) - n, 0, value) for n, value in enumerate(good)]
    return [argument(arg), *tests, (RETURN, 0, 0, refuse(code)), (RETURN, 0, 0, ALLOW)]


def refuse_values(arg: int, bad: tuple[int, ...], code: int) -> list[Instruction]:
    """A rule: the argument is none of these."""
    tests = [(EQUAL, len(bad) - n, 0, value) for n, value in enumerate(bad)]
    return [argument(arg), *tests, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, refuse(code))]


def refuse_bits(arg: int, bits: int, code: int) -> list[Instruction]:
    """A rule: the argument has none of these bits."""
    verdicts = [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, refuse(code))]
    return [argument(arg), (ANY_BIT, 1, 0, bits), *verdicts]


def need_bits(arg: int, bits: int, code: int) -> list[Instruction]:
    """A rule: the argument has some of these bits."""
    verdicts = [(RETURN, 0, 0, refuse(code)), (RETURN, 0, 0, ALLOW)]
    return [argument(arg), (ANY_BIT, 1, 0, bits), *verdicts]


def argument(index: int) -> Instruction:
    """Load the low half of an argument: the kernel itself reads these as 32 bits."""
    return (LOAD, 0, 0, _ARGS_AT + 8 * index)


def _spans(steps: dict[int, list[Instruction]], otherwise: list[Instruction]) -> list[Span]:
    """Return where each row of numbers with the same steps begins, and these steps."""
    spans: list[Span] = [(0, otherwise)]
    for number in sorted({edge for known in steps for edge in (known, known + 1)}):
        taken = steps.get(number, otherwise)
        if taken != spans[-1][1]:
            spans.append((number, taken))
    return spans


def _search(spans: list[Span]) -> list[Instruction]:
    """Return a program that finds the span of a number by halving, and takes its steps.

    When a filter is installed, the kernel runs it once for every number there is. One that tests
    the spans in a row takes longer for that than all else of the installation.
    """
    if len(spans) == 1:
        return spans[0][1]
    middle = len(spans) // 2
    (start, _), below, above = spans[middle], _search(spans[:middle]), _search(spans[middle:])
    if len(below) <= _LONGEST_TEST:
        return [(AT_LEAST, len(below), 0, start), *below, *above]
    return [(AT_LEAST, 0, 1, start), (JUMP, 0, 0, len(below)), *below, *above]

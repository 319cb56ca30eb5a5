"""Filters of system calls as classic BPF: an allow-list, with rules on the arguments of some calls.

SECURITY: the default is refusal. A foreign architecture's calls end the process. What wants a
privilege answers EPERM. What is not listed answers ENOSYS, as an old kernel would, so that
libraries take their other way, or as said.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

from atoll.jail import syscalls
from atoll.jail.syscall_table import ALLOWED

if TYPE_CHECKING:
    from collections.abc import Iterable

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, _KILL, _ASK = 0x7FFF0000, 0x80000000, 0x7FC00000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_NUMBER_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16

Instruction = tuple[int, int, int, int]


def assemble(
    allowed: dict[str, int],
    rules: dict[str, list[Instruction]],
    asked: Iterable[int] = (),
    otherwise: int = errno.ENOSYS,
    refused: Iterable[int] = (),
) -> bytes:
    """The program that lets through what is `allowed`, each as its rule says if it has one.

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
    for first, last in _ranges([allowed[name] for name in allowed.keys() - rules.keys()]):
        program += [(AT_LEAST, 0, 2, first), (AT_LEAST, 1, 0, last + 1), (RETURN, 0, 0, ALLOW)]
    for name in allowed.keys() & rules.keys():
        program += [(EQUAL, 0, len(rules[name]), allowed[name]), *rules[name]]
    for first, last in _ranges(list(refused)):
        answer = (RETURN, 0, 0, refuse(errno.EPERM))
        program += [(AT_LEAST, 0, 2, first), (AT_LEAST, 1, 0, last + 1), answer]
    for number in asked:
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, _ASK)]
    program.append((RETURN, 0, 0, refuse(otherwise)))
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


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each row of numbers without a gap: a filter is checked by its length."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found

"""The system-call filter: an allow-list, as a classic BPF program.

SECURITY: the default is refusal. A foreign architecture's calls end the process. What is not
listed answers ENOSYS, as an old kernel would, so that libraries take their other way. A few are
asked of the warden (see listener), and answer ENOSYS too where it does not listen.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct

from atoll.jail import syscalls
from atoll.jail.syscall_table import ALLOWED, ASKED

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ASK = 0x7FFF0000, 0x80000000, 0x7FC00000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
GIFTS = ("setns",)
"""The call by which every guest can ask for a descriptor."""
_NUMBER_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16

_NEW_NAMESPACES = 0x7E020080
_CLONE_THREAD = 0x00010000
_TTY_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_SET_ID_BITS = 0o6000
_MODE_ARGUMENTS = {
    "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "open": 2, "openat": 3,
    "mkdir": 1, "mkdirat": 2, "mknod": 1, "mknodat": 2,
}  # fmt: skip
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_SOCKET_BUFFERS = (socket.SO_SNDBUF, socket.SO_RCVBUF)
_SOCKET_POWERS = (26, 27, 32, 33, 50, 51, 52, 76)
"""SO_ATTACH_*, SO_DETACH_*, SO_*BUFFORCE, SO_PASSPIDFD."""
_SO_PEERPIDFD = 77

Instruction = tuple[int, int, int, int]


def refuse(code: int) -> int:
    """The filter's answer that fails a call with errno `code`."""
    return 0x00050000 | code


@functools.cache
def jail_program(*, clones: bool = False) -> bytes:
    """The filter of a jail with namespaces of its own; `clones`: the warden is asked about them."""
    rules = _mode_rules() | {
        "clone": _refuse_bits(0, _NEW_NAMESPACES, errno.EPERM),
        "ioctl": _refuse_values(1, _TTY_INJECTION, errno.EPERM),
        "socket": _only_values(0, _FAMILIES, errno.EACCES),
        "socketpair": _only_values(0, (socket.AF_UNIX,), errno.EACCES),
        "setsockopt": _socket_options(),
        "getsockopt": _no_peer(),
    }
    return _assemble(rules, denied=(), asked=tuple(ASKED) if clones else GIFTS)


def confined_program() -> bytes:
    """The filter without namespaces: no new process, no signal to another, no socket.

    Killing the one process is then killing all, and what it cannot name it cannot harm.
    """
    own = _only_values(0, (os.getpid(),), errno.EPERM)
    rules = _mode_rules() | {
        "clone": _need_bits(0, _CLONE_THREAD, errno.EPERM),
        "ioctl": _refuse_values(1, _TTY_INJECTION, errno.EPERM),
        "socketpair": _only_values(0, (socket.AF_UNIX,), errno.EACCES),
        "setsockopt": _socket_options(),
        "getsockopt": _no_peer(),
        "kill": own,
        "tgkill": own,
        "prlimit64": _only_values(0, (0, os.getpid()), errno.EPERM),
    }
    denied = (
        "fork", "vfork", "socket", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open",
        "setpgid", "setpriority", "sched_setaffinity", "sched_setparam", "sched_setscheduler",
    )  # fmt: skip
    return _assemble(rules, denied, GIFTS)


def _socket_options() -> list[Instruction]:
    """No programs for the kernel, and buffers stay at their size: asking for more does nothing."""
    buffers = [(_EQUAL, 0, 1, option) for option in _SOCKET_BUFFERS]
    ignored = [step for test in buffers for step in (test, (_RETURN, 0, 0, refuse(0)))]
    load, *filters = _refuse_values(2, _SOCKET_POWERS, errno.EPERM)
    return [*_ALLOW_OTHER_LEVELS, load, *ignored, *filters]


def _no_peer() -> list[Instruction]:
    """No handle on the process at the other end of a socket: of one, it is the host itself."""
    return [*_ALLOW_OTHER_LEVELS, *_refuse_values(2, (_SO_PEERPIDFD,), errno.ENOPROTOOPT)]


def _mode_rules() -> dict[str, list[Instruction]]:
    """No file gets a set-user or set-group bit: in a host's folder it would count outside."""
    return {
        name: _refuse_bits(arg, _SET_ID_BITS, errno.EPERM) for name, arg in _MODE_ARGUMENTS.items()
    }


def _assemble(
    rules: dict[str, list[Instruction]], denied: tuple[str, ...], asked: tuple[str, ...]
) -> bytes:
    program = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCH[syscalls.ARCH]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    allowed = {name: number for name, number in _numbers().items() if name not in denied}
    for first, last in _ranges([allowed[name] for name in allowed.keys() - rules.keys()]):
        program += [(_AT_LEAST, 0, 2, first), (_AT_LEAST, 1, 0, last + 1), (_RETURN, 0, 0, _ALLOW)]
    for name in allowed.keys() & rules.keys():
        program += [(_EQUAL, 0, len(rules[name]), allowed[name]), *rules[name]]
    for name in asked:
        program += [(_EQUAL, 0, 1, asked_number(name)), (_RETURN, 0, 0, _ASK)]
    program.append((_RETURN, 0, 0, refuse(errno.ENOSYS)))
    return b"".join(struct.pack("HBBI", code, yes, no, k) for code, yes, no, k in program)


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each row of numbers without a gap: a filter is checked by its length."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def asked_number(name: str) -> int:
    """The number of a call that the warden is asked about."""
    return ASKED[name][0 if syscalls.ARCH == "x86_64" else 1]


def _numbers() -> dict[str, int]:
    column = 0 if syscalls.ARCH == "x86_64" else 1
    pairs = ((name, numbers[column]) for name, numbers in ALLOWED.items())
    return {name: number for name, number in pairs if number is not None}


def _only_values(arg: int, good: tuple[int, ...], code: int) -> list[Instruction]:
    tests = [(_EQUAL, len(good) - n, 0, value) for n, value in enumerate(good)]
    return [_argument(arg), *tests, (_RETURN, 0, 0, refuse(code)), (_RETURN, 0, 0, _ALLOW)]


def _refuse_values(arg: int, bad: tuple[int, ...], code: int) -> list[Instruction]:
    tests = [(_EQUAL, len(bad) - n, 0, value) for n, value in enumerate(bad)]
    return [_argument(arg), *tests, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, refuse(code))]


def _refuse_bits(arg: int, bits: int, code: int) -> list[Instruction]:
    verdicts = [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, refuse(code))]
    return [_argument(arg), (_ANY_BIT, 1, 0, bits), *verdicts]


def _need_bits(arg: int, bits: int, code: int) -> list[Instruction]:
    verdicts = [(_RETURN, 0, 0, refuse(code)), (_RETURN, 0, 0, _ALLOW)]
    return [_argument(arg), (_ANY_BIT, 1, 0, bits), *verdicts]


def _argument(index: int) -> Instruction:
    """Load the low half of an argument: the kernel itself reads these as 32 bits."""
    return (_LOAD, 0, 0, _ARGS_AT + 8 * index)


_ALLOW_OTHER_LEVELS = [
    _argument(1),
    (_EQUAL, 1, 0, socket.SOL_SOCKET),
    (_RETURN, 0, 0, _ALLOW),
]
"""How a rule begins that is about options of the socket itself, not of a protocol."""

"""The system calls that a guest may make, in a jail and without one; `bpf` says what a filter is.

A few are asked of the supervisor (see listener), and answer ENOSYS when it has stopped to listen.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import GUEST, Watch
from atoll.jail.walls import syscalls
from atoll.jail.walls.bpf import (
    ALLOW,
    ANY_BIT,
    ASK,
    EQUAL,
    RETURN,
    argument,
    assemble,
    need_bits,
    numbers,
    only_values,
    refuse,
    refuse_bits,
    refuse_values,
)
from atoll.jail.walls.syscall_table import ASKED, JAIL_CALLS, REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atoll.jail.supervisor.spec import GuestUser
    from atoll.jail.walls.bpf import Instruction

PASSED_FDS = ("setns",)
"""The call by which every guest can ask for a descriptor."""

_NEW_NAMESPACES = 0x7E020080
_CLONE_THREAD = 0x00010000
_TTY_POWERS = (0x5412, 0x541C, 0x541D, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD
"""Input for others, the console, and line disciplines, whose drivers the kernel would load."""
_SET_ID_BITS = 0o6000
_MODE_ARGUMENTS = {
    **dict.fromkeys(("chmod", "fchmod", "creat", "mkdir", "mknod"), 1),
    **dict.fromkeys(("fchmodat", "fchmodat2", "open", "mkdirat", "mknodat"), 2),
    "openat": 3,
}
OPEN_FLAGS = {"open": 1, "openat": 2}
TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
FILE_CHANGES: dict[str, tuple[tuple[int | None, int], ...]] = {
    **dict.fromkeys(("creat", "truncate", "mkdir", "rmdir", "unlink", "mknod"), ((None, 0),)),
    **dict.fromkeys(("mkdirat", "unlinkat", "mknodat"), ((0, 1),)),
    **dict.fromkeys(("link", "symlink"), ((None, 1),)),
    "rename": ((None, 0), (None, 1)),
    **dict.fromkeys(("renameat", "renameat2"), ((0, 1), (2, 3))),
    "linkat": ((2, 3),),
    "symlinkat": ((1, 2),),
}
"""Calls that change folders: which argument is a folder, if any, and which a path below it."""
FILE_OPENS: dict[str, tuple[tuple[int | None, int], ...]] = {
    "open": ((None, 0),),
    "openat": ((0, 1),),
}
_ID_ARGUMENTS = {
    **dict.fromkeys(("chown", "fchown", "lchown"), (1, 2)),
    "fchownat": (2, 3),
    **dict.fromkeys(("setuid", "setgid"), (0,)),
    **dict.fromkeys(("setreuid", "setregid"), (0, 1)),
    **dict.fromkeys(("setresuid", "setresgid"), (0, 1, 2)),
}
PRETENDED_ALONE: dict[str, tuple[int | None, int | None]] = {
    "setgroups": (116, 159),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
}
"""Calls that only a pretended root can make."""
PRETENDED = (*_ID_ARGUMENTS, *PRETENDED_ALONE)
_NO_CHANGE = 0xFFFFFFFF
"""The id that means no change."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_NO_AUDIT = errno.EAFNOSUPPORT
"""What tools for users take for a kernel without audits; with other errors they give up."""
_PROTOCOLS = (
    0,
    socket.IPPROTO_ICMP,
    socket.IPPROTO_TCP,
    socket.IPPROTO_UDP,
    socket.IPPROTO_ICMPV6,
    socket.IPPROTO_RAW,
)
"""Asked for any other, such as SCTP or MPTCP, the kernel would load a driver that hardly anyone
needs. PF_UNIX is a protocol, too, of the number of ICMP."""
_TCP_ULP = 31
"""Puts a driver, such as the kernel's TLS, on top of a connection."""
_F_SETLEASE, _F_NOTIFY = 1024, 1026
"""A lease on a shared file keeps the host from opening it for 45 seconds. Notifications of a shared
folder tell what neighbours read there: asking for them does nothing."""
_SOCKET_BUFFERS = (socket.SO_SNDBUF, socket.SO_RCVBUF)
_SOCKET_POWERS = (26, 27, 32, 33, 50, 51, 52, 76)
"""SO_ATTACH_*, SO_DETACH_*, SO_*BUFFORCE, SO_PASSPIDFD."""
_SO_PEERPIDFD = 77


@functools.cache
def jail_program(
    *,
    clones: bool = False,
    user: GuestUser = GUEST,
    unix_sockets: bool = True,
    watch: Watch = Watch.NOTHING,
) -> bytes:
    """Return the filter of a jail; with `clones` it asks the supervisor about a clone's calls.

    Without `unix_sockets` there are only pairs of them. With `watch` the host hears of calls about
    files, and no descriptors are passed.
    """
    pretends = user.pretends
    nothing = {name: [_DO_NOTHING] for name in PRETENDED}
    rules = (nothing if pretends else _mode_rules() | _id_rules(user)) | {
        "clone": refuse_bits(0, _NEW_NAMESPACES, errno.EPERM),
        "ioctl": refuse_values(1, _TTY_POWERS, errno.EPERM),
        "socket": _families(
            _NO_AUDIT if pretends else errno.EACCES,
            _FAMILIES if unix_sockets else (socket.AF_INET, socket.AF_INET6),
        ),
        "socketpair": only_values(0, (socket.AF_UNIX,), errno.EACCES),
        "setsockopt": _socket_options(),
        "getsockopt": _no_peer(),
        "fcntl": _no_leases(),
        **{name: [_DO_NOTHING] for name in _OF_ALL_FILES},
    }
    asked: Iterable[str] = ASKED if clones else PASSED_FDS
    if watch is not Watch.NOTHING:
        rules |= _watched(rules, watch)
        asked = ()
    allowed = numbers() | (numbers(PRETENDED_ALONE) if pretends else {})
    refused = [number for number in _refused(asked) if number not in allowed.values()]
    return assemble(allowed, rules, map(asked_number, asked), refused=refused)


def _watched(rules: dict[str, list[Instruction]], watch: Watch) -> dict[str, list[Instruction]]:
    """Return the rules of calls about files, which ask where they would allow."""
    asking = {name: _asking(rules.get(name, [(RETURN, 0, 0, ALLOW)])) for name in FILE_CHANGES}
    for name, flags in OPEN_FLAGS.items():
        asked = [] if watch is Watch.ALL else [argument(flags), (ANY_BIT, 1, 0, TO_WRITE)]
        asking[name] = [
            argument(_MODE_ARGUMENTS[name]),
            (ANY_BIT, 0, 1, _SET_ID_BITS),
            (RETURN, 0, 0, refuse(errno.EPERM)),
            *asked,
            *([(RETURN, 0, 0, ALLOW)] if asked else []),
            (RETURN, 0, 0, ASK),
        ]
    return asking


def _asking(rule: list[Instruction]) -> list[Instruction]:
    return [(*step[:3], ASK) if step == (RETURN, 0, 0, ALLOW) else step for step in rule]


def zygote_program() -> bytes:
    """Return the filter of a zygote that an image's interpreter is: a guest's, and a jail's calls.

    Its guests install their own on top, so these calls are the zygote's alone.
    """
    rules = {
        "clone": refuse_bits(0, _NEW_NAMESPACES, errno.EPERM),
        "ioctl": refuse_values(1, _TTY_POWERS, errno.EPERM),
        "socket": _families(),
        "fcntl": _no_leases(),
        **{name: [_DO_NOTHING] for name in _OF_ALL_FILES},
    }
    allowed = numbers() | numbers(JAIL_CALLS) | {name: asked_number(name) for name in ASKED}
    refused = [n for name, n in numbers(REFUSED).items() if name not in JAIL_CALLS]
    return assemble(allowed, rules, (), refused=refused)


def confined_program() -> bytes:
    """The filter without namespaces: no new process, no signal to another, no socket.

    Killing the one process is then killing all, and what it cannot name it cannot harm.
    """
    own = only_values(0, (os.getpid(),), errno.EPERM)
    rules = _mode_rules() | {
        "clone": need_bits(0, _CLONE_THREAD, errno.EPERM),
        "ioctl": refuse_values(1, _TTY_POWERS, errno.EPERM),
        "socketpair": only_values(0, (socket.AF_UNIX,), errno.EACCES),
        "setsockopt": _socket_options(),
        "getsockopt": _no_peer(),
        "kill": own,
        "tgkill": own,
        "prlimit64": only_values(0, (0, os.getpid()), errno.EPERM),
        "fcntl": _no_leases(),
        **{name: [_DO_NOTHING] for name in _OF_ALL_FILES},
    }
    denied = (
        *("fork", "vfork", "socket", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"),
        *("pidfd_open", "setpgid", "setpriority", "sched_setaffinity", "sched_setparam"),
        "sched_setscheduler",
    )
    allowed = {name: number for name, number in numbers().items() if name not in denied}
    return assemble(allowed, rules, map(asked_number, PASSED_FDS), refused=_refused(PASSED_FDS))


def _refused(asked: Iterable[str]) -> list[int]:
    """Return the calls that answer EPERM: privileged ones, and those without a listener."""
    return [*numbers(REFUSED).values(), *(asked_number(name) for name in ASKED.keys() - set(asked))]


def _families(code: int = errno.EACCES, families: tuple[int, ...] = _FAMILIES) -> list[Instruction]:
    """Few families, and of these the protocols that programs use."""
    *family, _allow = only_values(0, families, code)
    return [*family, *only_values(2, _PROTOCOLS, errno.EPROTONOSUPPORT)]


def _socket_options() -> list[Instruction]:
    """No programs for the kernel, and buffers stay at their size: asking for more does nothing."""
    buffers = [(EQUAL, 0, 1, option) for option in _SOCKET_BUFFERS]
    ignored = [step for test in buffers for step in (test, _DO_NOTHING)]
    load, *filters = refuse_values(2, _SOCKET_POWERS, errno.EPERM)
    of_tcp = refuse_values(2, (_TCP_ULP,), errno.ENOPROTOOPT)
    tcp = [argument(1), (EQUAL, 0, len(of_tcp), socket.IPPROTO_TCP), *of_tcp]
    return [*tcp, *_ALLOW_OTHER_LEVELS, load, *ignored, *filters]


def _no_leases() -> list[Instruction]:
    """No lease, and no notification."""
    load, *leases = refuse_values(1, (_F_SETLEASE,), errno.EACCES)
    return [load, (EQUAL, 0, 1, _F_NOTIFY), _DO_NOTHING, *leases]


def _no_peer() -> list[Instruction]:
    """No handle on the process at the other end of a socket: of one, it is the host itself."""
    return [*_ALLOW_OTHER_LEVELS, *refuse_values(2, (_SO_PEERPIDFD,), errno.ENOPROTOOPT)]


def _mode_rules() -> dict[str, list[Instruction]]:
    """No file gets a set-user or set-group bit: in a host's folder it would count outside."""
    return {
        name: refuse_bits(arg, _SET_ID_BITS, errno.EPERM) for name, arg in _MODE_ARGUMENTS.items()
    }


def _id_rules(user: GuestUser) -> dict[str, list[Instruction]]:
    """Answer EPERM for ids that the guest's namespace does not have, as programs expect it.

    The kernel would answer EINVAL, which tar or cp take for a fault and not for a lack of rights.
    """
    known = tuple({user.uid, user.gid, _NO_CHANGE})
    return {name: _known_ids(args, known) for name, args in _ID_ARGUMENTS.items()}


def _known_ids(args: Sequence[int], known: tuple[int, ...]) -> list[Instruction]:
    tests = [only_values(arg, known, errno.EPERM) for arg in args]
    return [step for *test, _allow in tests for step in test] + [(RETURN, 0, 0, ALLOW)]


def asked_number(name: str) -> int:
    """The number of a call that the supervisor is asked about."""
    return ASKED[name][0 if syscalls.ARCH == "x86_64" else 1]


_DO_NOTHING: Instruction = (RETURN, 0, 0, refuse(0))
_OF_ALL_FILES = ("sync", "syncfs")
"""Calls that would write out all that the host has not written yet; fsync is the guest's own."""
_ALLOW_OTHER_LEVELS = [argument(1), (EQUAL, 1, 0, socket.SOL_SOCKET), (RETURN, 0, 0, ALLOW)]
"""How a rule begins that is about options of the socket itself, not of a protocol."""

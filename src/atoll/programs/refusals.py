"""Finds out which files a program is refused: it hears of calls before the kernel makes them.

    program ──openat──▶ kernel ──notification──▶ thread of this process: reads the path
       ▲                   ▲                          │ "go on", then: what do the rules say?
       └── its own answer ─┘◀─────────────────────────┘

SECURITY: the kernel decides, by mounts and Landlock; here the rules are only asked about the path.
A program that changes the path in its memory meanwhile can deceive the report, not the kernel.
Refusals by file modes, and through folders that were moved, are not seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shlex
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import SHOWN_FOLDERS, SYSTEM_PATHS
from atoll.jail.walls import bpf, notices, seccomp
from atoll.programs.rules import PROTECTED, SYSTEM, Access

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.jail.walls.notices import Notice
    from atoll.programs.rules import PathRule, ProgramRules

MOST_REFUSED, MOST_SEEN = 200, 20_000
"""Paths that are reported, and those that are remembered so as not to be judged again."""
_LONGEST, _PAGE = 4096, 4096
_HERE, _INT = 0xFFFFFF9C, 0xFFFFFFFF
"""AT_FDCWD, and all bits of an int."""
_OWN = tuple(map(Path, (*SHOWN_FOLDERS, "/dev", "/proc")))
"""What a jail has of its own."""
_SYSTEM = tuple(map(Path, SYSTEM_PATHS))
_Vector = ctypes.c_void_p * 2
_read_memory = ctypes.CDLL(None, use_errno=True).process_vm_readv
_read_memory.restype = ctypes.c_ssize_t


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that a program was refused."""

    path: str
    access: Access
    """What it wanted: READ or WRITE."""
    rule: str
    """Why it was refused."""
    add: str = ""
    """The option that allows it; empty if there is none."""


class Watcher:
    """Answers the notifications of one program in a thread, and keeps what was refused."""

    def __init__(self, rules: ProgramRules, argv: Sequence[str], listener: int) -> None:
        command = " ".join(argv)
        ignored = [path for part, path in rules.ignored if part == "*" or part in command]
        self._judge, self._listener = Judge(rules, tuple(ignored)), listener
        calls = bpf.numbers()
        places = seccomp.FILE_OPENS | seccomp.FILE_CHANGES
        self._places = {calls[name]: places[name] for name in places if name in calls}
        flags = seccomp.OPEN_FLAGS
        self._flags = {calls[name]: flags[name] for name in flags if name in calls}
        self._seen: set[tuple[str, Access]] = set()
        self.refused: list[RefusedFile] = []
        """In the order in which the program first asked for them."""
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hear no more: the program has ended."""
        os.close(self._stop_write)
        self._thread.join()
        os.close(self._stop_read)
        os.close(self._listener)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if ready.get(self._listener, 0) & select.POLLIN:
                self._answer()
            elif ready:
                return

    def _answer(self) -> None:
        notice = notices.receive(self._listener)
        if notice is None:
            return
        asked: list[str] = []
        with contextlib.suppress(OSError, ValueError):  # it was killed, or gave no path
            asked += self._paths(notice)
        with contextlib.suppress(OSError):  # it was killed, or a signal took the call back
            notices.proceed(self._listener, notice)
        access = self._access(notice)
        for path in asked:
            if (path, access) not in self._seen:
                self._note(path, access)

    def _paths(self, notice: Notice) -> Iterator[str]:
        for folder, name in self._places[notice.call]:
            path = _text_at(notice.pid, notice.arguments[name])
            if path and not path.startswith("/"):
                fd = _HERE if folder is None else notice.arguments[folder] & _INT
                link = "cwd" if fd == _HERE else f"fd/{fd}"
                path = f"{os.readlink(f'/proc/{notice.pid}/{link}')}/{path}"
            yield os.path.normpath(path)

    def _access(self, notice: Notice) -> Access:
        flags = self._flags.get(notice.call)
        writes = flags is None or notice.arguments[flags] & seccomp.TO_WRITE
        return Access.WRITE if writes else Access.READ

    def _note(self, path: str, access: Access) -> None:
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen.add((path, access))
        refused = self._judge.refusal(path, access)
        if refused is not None and len(self.refused) < MOST_REFUSED and refused not in self.refused:
            self.refused.append(refused)


@dataclass(frozen=True, slots=True)
class Judge:
    """Says what rules refuse."""

    rules: ProgramRules
    ignored: tuple[Path, ...] = ()
    """Paths below which no refusal is reported."""

    def refusal(self, path: str, access: Access) -> RefusedFile | None:
        """Return what refuses an access to a path of the program; None if nothing does."""
        named = Path(path)
        if self.rules.rule_of(named) is None and any(map(named.is_relative_to, _OWN)):
            return None
        real = Path(os.path.realpath(path)) if self.rules.image is None else named
        if any(map(real.is_relative_to, self.ignored)):
            return None
        rule = self.rules.rule_of(real)
        if rule is None:
            return self._unnamed(real, access)
        if rule.access is Access.WRITE or (access is Access.READ and self.rules.shown(real)):
            return None
        return RefusedFile(str(real), access, rule.reason, self._remedy(real, access, rule))

    def _unnamed(self, real: Path, access: Access) -> RefusedFile | None:
        """Return the refusal of a path that no rule names."""
        if self.rules.image is not None or any(map(real.is_relative_to, _SYSTEM)):
            return RefusedFile(str(real), access, SYSTEM) if access is Access.WRITE else None
        if access is Access.READ and not os.path.lexists(real):
            return None  # it is missing outside too
        return RefusedFile(str(real), access, "it is not shown", self._remedy(real, access, None))

    def _remedy(self, real: Path, access: Access, rule: PathRule | None) -> str:
        """Return the option that would allow an access."""
        option = "--write" if access is Access.WRITE else "--read"
        if rule is not None and rule.access in (Access.DENY_READ, Access.DENY_WRITE):
            return f"{option} {shlex.quote(str(rule.path))}" if rule.reason == PROTECTED else ""
        path = real if access is Access.READ else _folder_for(real)
        return f"{option} {shlex.quote(str(path))}"


def _folder_for(path: Path) -> Path:
    """Return the folder to allow for a file: the innermost that exists, but never a whole home."""
    home = Path(os.path.realpath(Path.home()))
    inner = path
    for folder in path.parents:
        if folder in (home, *home.parents):
            return inner
        if folder.is_dir():
            return folder
        inner = folder
    return inner


def _text_at(pid: int, address: int) -> str:
    """Return a text in the memory of a process, which ends with a zero byte."""
    data = b""
    while b"\0" not in data and len(data) < _LONGEST:
        size = _PAGE - (address + len(data)) % _PAGE  # the next page may not be mapped
        buffer = ctypes.create_string_buffer(size)
        ours = _Vector(ctypes.addressof(buffer), size)
        theirs = _Vector(address + len(data), size)
        got = _read_memory(pid, ours, 1, theirs, 1, 0)
        if got <= 0:
            raise OSError(ctypes.get_errno(), "no such memory")
        data += buffer.raw[:got]
    return os.fsdecode(data.partition(b"\0")[0])

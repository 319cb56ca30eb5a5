"""A sandbox with holes, in which every attack is seen to bite: what bites nothing here is a typo.

    fork ─▶ namespaces and mounts ─▶ a user without rights on the host ─▶ root in a user namespace
         ─▶ first process ─▶ a neighbour, and the attack with its steps in one process
         ─▶ a careless host reads what lies in /app

Nothing is filtered or hidden: files, network, system calls and the other processes are the host's
or the neighbour's. What an attack breaks is its own: the host's files belong to other users, and all
processes of the attack end with the first one. Attacks that break nothing but their own process can
share a sandbox: there each is forked off the first process.

A program, so that it forks a process without threads: `run` starts it. Reads a JSON object from its
input, name to {"cells": [...], "hangs": bool, "shares": bool}; prints one line of JSON for each. Its
arguments are modules to import before the first fork. Standard library only.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

USER = 12346
"""Owns nothing on the host. If the tests run as root, attacks run as this user."""
NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC, NEW_USER, NEW_PROCESSES = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000,
)  # fmt: skip
BIND, RECURSIVE, PRIVATE, DETACH = 0x1000, 0x4000, 0x40000, 2
DUMPABLE, END_WITH_PARENT = 4, 1
MARK = "PWNED"
GUEST_FOLDERS = ("/app", "/home/guest")
"""A host may have folders of these names: the attacks get others."""
MIB = 1 << 20
MEMORY_BYTES, OUTPUT_BYTES = 4096 * MIB, MIB
AT_ONCE = 8
HANGS_SECONDS = 1.0
"""An attack that is to hang must still run after this."""
PATIENCE_SECONDS = 100.0
"""What any other attack may take, on a busy machine too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attack ended without walls."""

    output: str
    error: str
    """The type of the first exception that ended one of its cells."""
    hung: bool
    signal: int

    @property
    def bit(self) -> bool:
        """Whether it got through."""
        return MARK in self.output


def run(
    attacks: Mapping[str, list[str]],
    *,
    hanging: Container[str] = (),
    sharing: Container[str] = (),
    preload: Iterable[str] = (),
) -> dict[str, Ending]:
    """Run the cells of each attack in a weakened sandbox; return how each ended.

    Those that are `sharing` run in one sandbox, each in a process of its own; every other attack
    has a sandbox to itself.
    """
    work = {
        name: {"cells": cells, "hangs": name in hanging, "shares": name in sharing}
        for name, cells in attacks.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, *preload],
            input=json.dumps(work),
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            close_fds=False,  # descriptors that a careless start hands on are a hole too
        )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row.pop("name"): Ending(**row) for row in rows}


class Attempt:
    """One attack on its way, in a process of its own."""

    read_ends: ClassVar[list[int]] = []

    def __init__(self, cells: Iterable[str], *, hangs: bool = False, shares: bool = False) -> None:
        self._end = time.monotonic() + (HANGS_SECONDS if hangs else PATIENCE_SECONDS)
        self._output, output = os.pipe()
        self._error, error = os.pipe()
        Attempt.read_ends += [self._output, self._error]
        self.pid = os.fork()
        if self.pid == 0:
            # Or an attack that reads every descriptor takes the output of another.
            for fd in Attempt.read_ends:
                os.close(fd)
            _be_attacked(cells, output, error, shares=shares)
        os.close(output)
        os.close(error)

    def ending(self) -> dict[str, Any]:
        """Wait for the end, or end it when its time is up; return what was seen."""
        seen, hung = self._read()
        if hung or MARK in seen:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        error = os.read(self._error, 500).decode("utf-8", "replace")
        for fd in (self._output, self._error):
            Attempt.read_ends.remove(fd)
            os.close(fd)
        code = os.waitstatus_to_exitcode(status)
        number = -code if code < 0 else max(0, code - 128)
        killed_here = hung or MARK in seen
        return {
            "output": seen,
            "error": error,
            "hung": hung,
            "signal": 0 if killed_here else number,
        }

    def _read(self) -> tuple[str, bool]:
        """What it prints until it bites or all its processes have ended, and whether one hangs."""
        seen = b""
        while True:  # what it has printed is read after its time too: others were waited for
            left = self._end - time.monotonic()
            if not select.select([self._output], [], [], max(0, left))[0]:
                return seen.decode("utf-8", "replace"), True
            block = os.read(self._output, MIB)
            seen = (seen + block)[:OUTPUT_BYTES]
            if MARK.encode() in seen:
                return seen.decode("utf-8", "replace"), False
            if not block or (left < 0 and len(seen) == OUTPUT_BYTES):
                return seen.decode("utf-8", "replace"), bool(block)


def main() -> None:
    """Run all attacks of the input, a few at once."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    attacks = json.load(sys.stdin)
    _run_all({name: work for name, work in attacks.items() if not work["shares"]})
    if sharing := {name: work for name, work in attacks.items() if work["shares"]}:
        sandbox = os.fork()
        if sandbox == 0:
            _enter()
            _run_all(sharing)
            os._exit(0)
        os.waitpid(sandbox, 0)


def _run_all(attacks: Mapping[str, Any]) -> None:
    names = list(attacks)
    for start in range(0, len(names), AT_ONCE):
        running = {name: Attempt(**attacks[name]) for name in names[start : start + AT_ONCE]}
        for name, attempt in running.items():
            print(json.dumps({"name": name, **attempt.ending()}), flush=True)


def _enter() -> None:
    """Continue in a weakened sandbox, as a process that neighbours live beside."""
    for step in (_separate, _show_host, _drop_user, _limit, _start_neighbours, _fork_and_wait):
        step()


def _be_attacked(cells: Iterable[str], output: int, error: int, *, shares: bool) -> None:
    """Run the cells, in a new weakened sandbox unless this is one, and exit; does not return."""
    try:
        if not shares:
            _enter()
        sys.stdout.reconfigure(line_buffering=True)  # as a guest's: a forked child may not flush
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.write(error, _run(cells).encode()[:500])
    except BaseException as exc:
        os.write(error, f"{type(exc).__name__}: {exc}".encode()[:500])
    os._exit(0)


def _separate() -> None:
    """Continue as the first process of new namespaces."""
    if os.geteuid() != 0:
        _own_user_namespace()
    _check(_libc().unshare(NEW_MOUNTS | NEW_HOST_NAME | NEW_IPC | NEW_PROCESSES), "unshare")
    _fork_and_wait()


def _fork_and_wait() -> None:
    """Continue in a child; the parent waits for its end and exits with a code that tells it."""
    child = os.fork()
    if child == 0:
        _libc().prctl(END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        return
    for fd in (1, 2):  # readers are to see the end of the attack's processes alone
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
    status = os.waitpid(child, 0)[1]
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _show_host() -> None:
    """Show the host's files in a tree that also has the guest's folders, and a /proc of our own."""
    _mount("none", "/", "", RECURSIVE | PRIVATE)
    root = tempfile.mkdtemp()
    _mount("tmpfs", root, "tmpfs", 0, "size=256m")
    os.chmod(root, 0o777)
    os.mkdir(f"{root}/home")  # its own, so that nothing is made in the host's
    for entry in (*os.scandir("/"), *os.scandir("/home")):
        if entry.path not in GUEST_FOLDERS and entry.path != "/home":
            _show(entry, root + entry.path)
    with contextlib.suppress(OSError):  # the host's may be a plain folder of root's, or missing
        _mount("tmpfs", f"{root}/dev/shm", "tmpfs", 0, "size=64m,mode=1777")
    for path in GUEST_FOLDERS:
        os.mkdir(root + path)
        os.chmod(root + path, 0o777)
    os.chdir(root)
    _check(_libc().pivot_root(b".", b"."), "pivot_root")  # chroot would forbid user namespaces
    _check(_libc().umount2(b".", DETACH), "umount2")
    with contextlib.suppress(OSError):  # where /proc is covered in part, the host's stays
        _mount("proc", "/proc", "proc", 0)
    os.chdir("/app")


def _show(entry: os.DirEntry[str], target: str) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), target)
    elif entry.is_dir():
        os.mkdir(target)
        closed = not entry.stat().st_mode & 0o005
        for source in _interpreters(entry.path) if closed else [entry.path]:
            os.makedirs(target + source.removeprefix(entry.path), exist_ok=True)
            with contextlib.suppress(OSError):
                _mount(source, target + source.removeprefix(entry.path), "", BIND | RECURSIVE)


def _interpreters(folder: str) -> list[str]:
    """Where this Python lies, if it is in a folder that others may not enter (such as /root)."""
    found = {os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.prefix)}
    return [prefix for prefix in found if prefix.startswith(folder + "/")]


def _drop_user() -> None:
    """Give up root's rights on the host. An ordinary user has none, and is in a namespace already."""
    if Path("/proc/self/uid_map").read_text().split()[2] == "1":
        return
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    _libc().prctl(DUMPABLE, 1, 0, 0, 0)  # or /proc/self would belong to root
    _libc().prctl(END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)  # another user's wish is forgotten
    _own_user_namespace()
    _check(_libc().unshare(NEW_MOUNTS | NEW_HOST_NAME | NEW_IPC), "unshare")


def _own_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc().unshare(NEW_USER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _limit() -> None:
    """Spare the machine: every attack is bounded, this is in case one is not."""
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, 60),
    ):
        resource.setrlimit(kind, (most, resource.RLIM_INFINITY))


def _start_neighbours() -> None:
    """Have processes of others in sight: more than a guest in a jail of its own would see."""
    for _ in range(4):
        if os.fork() == 0:
            signal.pause()


def _run(cells: Iterable[str]) -> str:
    """Run the cells as a session does, then what comes after it; return the first error's type."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    failed = [name for code in cells if (name := _ended_by(lambda c=code: _cell(c, namespace)))]
    time.sleep = lambda _seconds: None  # what comes after may wait as long as it likes
    for after in (namespace.clear, gc.collect, _read_carelessly, atexit._run_exitfuncs):
        _ended_by(after)
    return failed[0] if failed else ""


def _ended_by(work: Any) -> str:
    name = ""
    try:
        work()
    except BaseException as exc:
        name = type(exc).__name__
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    return name


def _cell(code: str, namespace: dict[str, Any]) -> None:
    """Run a cell and print the value of its last line, as a session shows it."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<attack>", "exec", dont_inherit=True), namespace)
    if isinstance(last, ast.Expr):
        expression = ast.Expression(last.value)
        value = eval(compile(expression, "<attack>", "eval", dont_inherit=True), namespace)
        if value is not None:
            print(repr(value)[:OUTPUT_BYTES])


def _read_carelessly() -> None:
    """Do with the guest's files what a host must not: follow its links, import its modules."""
    for name in sorted(os.listdir("/app"))[:50]:
        with contextlib.suppress(OSError, UnicodeError):
            if os.path.isfile(f"/app/{name}"):
                text = Path(f"/app/{name}").read_text(encoding="utf-8")[:1000]
                exec(text, {}) if name.endswith(".py") else print(text)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags))
    _check(_libc().mount(*arguments, options.encode()), f"mount on {target}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


if __name__ == "__main__":
    main()

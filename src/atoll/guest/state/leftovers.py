"""What a saved state has no room for: files elsewhere, environment, folder, threads, processes.

A state is variables and the files of the working folder. What else a session has is named to the
host, which decides whether it can do without.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

    from ..shared.messages import Json

ELSEWHERE = ("/tmp", "/home/guest", "/dev/shm")  # noqa: S108 - the guest's own
_READERS = {"random": "getstate", "numpy.random": "get_state"}
OWN_MODULE = "the variables of the session's own modules are not saved"
NOT_KEPT = "handlers of signals are not saved"
NOT_HERE = "only files of the working folder are saved"


def changed_environment(before: dict[str, str]) -> dict[str, str | None]:
    """Return the variables that differ from `before`; None for deleted ones."""
    now = dict(os.environ)
    changed: dict[str, str | None] = {n: v for n, v in now.items() if before.get(n) != v}
    changed.update((name, None) for name in before if name not in now)
    return changed


def current_folder(root: str) -> str | None:
    """Return the current folder if it is another than `root`."""
    try:
        here = os.getcwd()
    except OSError:
        return "(deleted)"
    return None if os.path.realpath(here) == os.path.realpath(root) else here


def generators() -> Json:
    """Return the states of the random generators of modules that were imported."""
    result = {name: sys.modules[name] for name in ("random", "numpy.random") if name in sys.modules}
    return {name: getattr(module, _READERS[name])() for name, module in result.items()}


def restore_generators(states: Json) -> None:
    """Have the generators go on from these states."""
    for name, state in states.items():
        __import__(name)
        getattr(sys.modules[name], _READERS[name].replace("get", "set"))(state)


def settings() -> Json:
    """Return the settings of the interpreter that a state holds, by their names."""
    result: Json = {
        "sys.path": list(sys.path),
        "sys.argv": list(sys.argv),
        "recursion limit": sys.getrecursionlimit(),
    }
    if hasattr(os, "umask"):
        result["umask"] = mask = os.umask(0o077)
        os.umask(mask)
    return result


def restore_settings(settings: Json) -> None:
    """Set these again."""
    for name, values in (("sys.path", sys.path), ("sys.argv", sys.argv)):
        values[:] = settings.get(name, values)
    sys.setrecursionlimit(settings.get("recursion limit", sys.getrecursionlimit()))
    if "umask" in settings:
        os.umask(settings["umask"])


def find(root: str, before: set[str], clones: list[int]) -> dict[str, str]:
    """Return what no state holds, each with the reason.

    `before` is what files_elsewhere returned when the session started: mounts are made there, too.
    `clones` are forks that the host made.
    """
    result = {path: NOT_HERE for path in files_elsewhere(root) if path not in before}
    if _threads() > 1:
        result["threads"] = "running threads are not saved"
    if set(_children()) - set(clones):
        result["processes"] = "running processes are not saved"
    result.update(("handler of signal {}".format(number), NOT_KEPT) for number in _handled())
    return result


def own_modules(root: str, before: set[str]) -> dict[str, str]:
    """Return modules that were imported from the session's own folders, each with the reason.

    A restored session imports them again, with the variables that they have then. `before` is as
    in `find`: an interpreter may lie in one of these folders, too.
    """
    folders = tuple(os.path.join(folder, "") for folder in (root, *ELSEWHERE) if folder)
    mounted = tuple(os.path.join(path, "") for path in before)
    known = [
        (name, getattr(module, "__file__", None)) for name, module in dict(sys.modules).items()
    ]
    own = [
        name
        for name, file in known
        if isinstance(file, str) and file.startswith(folders) and not file.startswith(mounted)
    ]
    return {"module " + name: OWN_MODULE for name in own}


def _handled() -> Iterator[int]:
    """Return the signals that guest code handles, except the one that interrupts a cell."""
    try:
        import _signal  # type: ignore[import-not-found]

        for number in sorted(_signal.valid_signals()):
            if number != _signal.SIGINT and callable(_signal.getsignal(number)):
                yield int(number)
    except (ImportError, AttributeError):
        return  # a backend without signals


def files_elsewhere(root: str) -> Iterator[str]:
    """Yield what lies in folders of the guest's that are not saved."""
    own = _identity(root)
    for folder in ELSEWHERE:
        if _identity(folder) == own:
            continue
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue  # there is no such folder in this backend
        for name in names:
            yield folder + "/" + name


def mounted_elsewhere() -> set[str]:
    """Return what lies in these folders because something is mounted there, or below.

    For a zygote: its guests have nothing else in them at first.
    """
    result = set()
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            raw = line.split()[4].decode("unicode_escape")  # a space is \040 there
            path = os.fsdecode(raw.encode("latin-1"))
            for folder in ELSEWHERE:
                if path.startswith(folder + "/"):
                    result.add(folder + "/" + path[len(folder) + 1 :].partition("/")[0])
    return result


def _identity(path: str) -> tuple[int, int] | None:
    """Return what two names of one folder have in common; None if the folder does not exist."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _threads() -> int:
    return len(sys._current_frames())  # noqa: SLF001 - those that `threading` does not know, too


def _children() -> Iterator[int]:
    """Return the child processes that were not waited for; none if /proc cannot be read."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return
    for task in tasks:
        text = _read("/proc/self/task/{}/children".format(task))
        for pid in _own_processes() if text is None else text.split():
            yield int(pid)


def _own_processes() -> Iterator[str]:
    """Return the child processes by their parent's pid: gVisor's /proc lists no children."""
    own = str(os.getpid())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        facts = (_read("/proc/{}/stat".format(pid)) or "").rpartition(")")[2].split()
        if facts[1:2] == [own]:
            yield pid


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None

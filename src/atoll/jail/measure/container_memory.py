"""Memory of a container that has a kernel of its own, measured where no control group counts it.

gVisor's kernel keeps the memory of all processes of its guest in one memory file. Little of it is
mapped into a process of the host's, so that a sum over processes misses most of it.

SECURITY: nothing that the guest says is used. This counts what gVisor's kernel holds for guest
code; were that kernel itself taken over, only a control group would count what it does then.
"""

from __future__ import annotations

import os

from atoll.jail.measure import meter

MEMORY_FILE = "/memfd:runsc-memory "
_BLOCK = 512


class ContainerMemory:
    """Measures one container; the memory file is looked for until it is found."""

    def __init__(self) -> None:
        self._path = ""
        self._inode = 0

    def measure(self, pids: list[int]) -> int | None:
        """Return the memory of these processes and of their guest; None without a memory file.

        It takes one look at each process, however many files and mappings the guest has. A shared
        context, which is a memory file of the host's, is not counted.
        """
        held = self._file_bytes()
        if held is None:
            self._find(pids)
            held = self._file_bytes()
        return None if held is None else held + sum(map(meter.anonymous_bytes, pids))

    def _file_bytes(self) -> int | None:
        """Return what the file really holds: its size is that of its address space."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_blocks * _BLOCK if found.st_ino == self._inode else None

    def _find(self, pids: list[int]) -> None:
        for path in (path for pid in pids for path in _descriptors(pid)):
            try:
                if os.readlink(path).startswith(MEMORY_FILE):
                    self._path, self._inode = path, os.stat(path).st_ino
                    return
            except OSError:
                continue  # it was closed meanwhile


def _descriptors(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []  # it has ended, or is the jail's first process, which nobody may look into

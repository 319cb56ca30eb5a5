"""Records of processes that the supervisor starts itself: pid 1 of a jail, or a confined guest."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from atoll.jail.measure.meter import ContainerMemory
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.jail_record import JailRecord
from atoll.jail.supervisor.shared_jail import Listener, Reply, wants_fd
from atoll.jail.walls import joined
from atoll.jail.walls.remove import remove_tree

if TYPE_CHECKING:
    import selectors
    import socket

    from atoll.jail.measure.cgroup import Cgroup
    from atoll.jail.supervisor.spec import JailSpec, ZygoteHostSpec
    from atoll.jail.walls import steps
    from atoll.jail.walls.notices import Notice


class StartedRecord(JailRecord):
    """A process that reports its pid and its progress on a status socket."""

    def __init__(
        self,
        spec: JailSpec | ZygoteHostSpec,
        lease: socket.socket,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
    ) -> None:
        super().__init__(getattr(spec, "limits", None), lease, group, selector)
        self._starter = self._pid = 0
        self._pidfd: int | None = None
        self._status, self._their_status = packets.pair()
        try:
            self.lifeline_read, self._lifeline = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self._status.close()
            self._their_status.close()
            raise

    @property
    def status_write(self) -> int:
        """The descriptor on which the new process reports."""
        return self._their_status.fileno()

    def forked(self, pid: int) -> None:
        """Note the pid of the first process."""
        self._starter = pid
        self._their_status.close()
        os.close(self.lifeline_read)
        self._watch(self.lease.fileno(), self._on_command)
        self._watch(self._status.fileno(), self._on_status)

    def abandon(self) -> None:
        """Release everything if the fork failed."""
        self._their_status.close()
        self._status.close()
        packets.close_all((self.lifeline_read, self._lifeline))

    def guest_pid(self) -> int:
        """Return 0: a started sandbox is never cloned."""
        return 0

    def roots(self) -> list[int]:
        """Return pid 1 of the jail, or the confined process."""
        return [self._pid] if self._pid else []

    def _signal_guest(self) -> None:
        self._signal(signal.SIGINT)

    def _signal_all(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Never the starter: killed between its fork and its report, it would leave a pid 1 whose
        # pid is unknown and which is never reaped. It reports within milliseconds; see _note.
        if self._pid and not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _on_status(self) -> None:
        """Read the jail's reports. A confined process closes the socket when it executes."""
        if self._status.fileno() not in self._selector.get_map():
            return  # read to its end by _on_exit, in the same round
        try:
            report = packets.receive(self._status)
        except BlockingIOError:
            return  # it is still there
        except OSError:
            report = None
        if report is not None:
            self._note(report)
            return
        self._unwatch(self._status.fileno())
        if not self._pid:  # the process to wait for was never forked
            self._reap_starter()
            self.all_gone()

    def _note(self, report: packets.Message) -> None:
        if report.kind == "pid":
            self._hold(report.fields["pid"])
        elif report.kind == "exit":
            self._wait_status = report.fields["status"]
        elif report.kind == "error":
            self.fail(report.fields["reason"])
        elif report.kind == "built":
            self._reap_starter()
            self._built(report)

    def _hold(self, pid: int) -> None:
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._watch(self._pidfd, self._on_exit)
        if self._killed:
            self._signal_all()

    def _built(self, _report: packets.Message) -> None:
        """Note that the process is where it is to be."""

    def _on_exit(self) -> None:
        """Note the end of the process; if it was pid 1, its whole namespace has ended."""
        assert self._pidfd is not None
        self._unwatch(self._pidfd)
        while self._status.fileno() in self._selector.get_map():
            self._on_status()  # its last report may still be in the pipe
        self._reap_starter()
        _, status = os.waitpid(self._pid, 0)
        if self._wait_status is None:
            self._wait_status = status
        self.all_gone()

    def is_over(self) -> bool:
        """Return whether all has ended; without a pidfd, poll with waitpid."""
        if self._killed and self._pid and self._pidfd is None and not self._reaped:
            with contextlib.suppress(ChildProcessError):  # its parent is still the starter
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    self._reap_starter()
                    self._reaped = True
        return super().is_over()

    def _reap_starter(self) -> None:
        """Reap the process that forked pid 1; it exits at once."""
        if self._starter and self._starter != self._pid:
            os.waitpid(self._starter, 0)
            self._starter = 0

    def _release(self) -> None:
        self._status.close()
        for fd in (self._lifeline, self._pidfd):
            if fd is not None:
                os.close(fd)


class ColdJailRecord(StartedRecord):
    """A guest in a jail, or confined in a private folder."""

    def __init__(
        self,
        spec: JailSpec,
        lease: socket.socket,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
    ) -> None:
        super().__init__(spec, lease, group, selector)
        self._container = None if spec.container is None else ContainerMemory()
        alone = spec.jailed or spec.workspace is not None
        self.private_folder = None if alone else _make_private_folder()
        self._listener: Listener | None = None
        self._folders: list[int] = []
        self.jail: steps.Jail | None = None
        """The walls of the guest, which further processes get too."""
        self._entrance: joined.Entrance | None = None
        """The guest's namespaces and root, if it has its own."""

    def forked(self, pid: int) -> None:
        """Note the pid of the first process, which is the one to watch."""
        super().forked(pid)
        try:
            self._hold(pid)
        except OSError as exc:  # no descriptor is free: see is_over
            self.fail(f"fork: {exc}")
            self.kill()

    def _built(self, report: packets.Message) -> None:
        """Keep what pid 1 has opened: the supervisor would have to resolve the guest's paths."""
        of_folders = report.fields["folders"]
        of_entrance = of_folders + report.fields["entrance"]
        self._folders = report.fds[:of_folders]
        if entrance := report.fds[of_folders:of_entrance]:
            self._entrance = joined.Entrance(entrance[:-1], entrance[-1])
        for fd in report.fds[of_entrance:]:
            self._listener = Listener(fd, self._decide, self._selector)
        self._started()

    def _decide(self, notice: Notice) -> Reply:
        return self.next_passed_fd() if wants_fd(notice) else Reply()

    def _open_folders(self) -> list[int]:
        """Return the folders that were opened when the jail was built."""
        return [os.dup(fd) for fd in self._folders]

    def _open_network(self) -> int:
        """Return the namespace that was opened when the jail was built."""
        return os.dup(self.entrance().namespaces[0])

    def entrance(self) -> joined.Entrance:
        """Return the namespaces and the root that were opened when the jail was built."""
        if self._entrance is None:
            raise OSError(0, "it has no namespaces of its own")
        return self._entrance

    def walls(self) -> steps.Jail:
        """Return the walls that the jail was built with."""
        if self.jail is None:
            raise OSError(0, "it has no jail")
        return self.jail

    def _was_killed(self, status: int) -> bool:
        """Return whether it can have been killed: a container runtime outlives what it runs."""
        return super()._was_killed(status) or (self._container is not None and status != 0)

    def _exceeds(self, limit: int, pids: list[int]) -> bool:
        """Return whether processes hold more than a limit, with all that a container holds."""
        used = self._container.measure(pids) if self._container else None
        return super()._exceeds(limit, pids) if used is None else used > limit

    def abandon(self) -> None:
        """Release everything if the fork failed."""
        super().abandon()
        if self.private_folder:
            os.rmdir(self.private_folder)

    def _release(self) -> None:
        super()._release()
        if self._listener is not None:
            self._listener.close()
        packets.close_all(self._folders)
        if self._entrance is not None:
            packets.close_all(self._entrance.descriptors())
        if self.private_folder:
            with contextlib.suppress(OSError):
                remove_tree(self.private_folder)


def _make_private_folder() -> str:
    # Not at the top: it imports `random`, which each fork of the supervisor would reseed.
    import tempfile  # noqa: PLC0415

    return tempfile.mkdtemp(f"-{os.getpid()}-atoll")

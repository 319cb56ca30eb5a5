"""What the supervisor knows of one sandbox: its lease, limits, control group and end.

Subclasses say how its processes are started: see started_jail, forked_guest and clone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import selectors
import signal
import socket
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

from atoll.jail.measure import meter
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.pidfds import pidfd_of, send_signal
from atoll.jail.supervisor.process_record import ProcessRecord
from atoll.jail.supervisor.shared_jail import SCANS, Reply, namespace_of
from atoll.jail.supervisor.spec import NO_LIMITS, SHOWN_FOLDERS
from atoll.jail.walls import cloned, fetched_fd, guest_sockets, joined, loopback, steps, syscalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.jail.measure.cgroup import Cgroup
    from atoll.jail.supervisor.shared_jail import SharedJail
    from atoll.jail.supervisor.spec import Limits
    from atoll.jail.zygote.clone import CloneRecord

GROUP_PATIENCE_SECONDS = 5.0
KILL_PATIENCE_SECONDS = 5.0
"""After this time a sandbox is reported as ended even if the kernel has not reaped it:
the process that reaps it, or reports its pids, may be stopped."""
MEMORY_SLACK = 96 << 20
"""More than the runtime lets one process have beyond the limit (see guest/core/memory): code that
takes too much meets a MemoryError, and its session is not ended during the next cell."""
MEASURE_PAUSE = 20
"""Measuring takes at most a twentieth of the time: large sandboxes are measured less often."""
MAX_UNMEASURED = 10
"""Times in a row that memory may be unreadable; then the sandbox ends: its limit does not hold."""
_SHOWN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class JailRecord(ABC):
    """One sandbox: the supervisor's handle on its processes and its lease."""

    def __init__(
        self,
        limits: Limits | None,
        lease: socket.socket,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
    ) -> None:
        self.limits, self.lease, self.cgroup, self._selector = limits, lease, group, selector
        self._killed = self._gone = self._reaped = self._over_memory = False
        self.end_reported = False  # to the host
        self._wait_status: int | None = None
        self._failure: str | None = None
        self._deadline: float | None = None
        self._kill_deadline, self._measure_at, self._unmeasured = math.inf, 0.0, 0
        self._final: dict[str, Any] = {}
        self._passed_fds: deque[int] = deque()
        self._network_helper: tuple[int, int] | None = None
        """Pid and pidfd of the helper in the jail's network, while it runs."""
        lease.setblocking(False)
        self.due = self._measured()
        """Whether the supervisor checks it each round: it is ending, or its memory is measured."""
        self.shared_jail: SharedJail | None = None
        self.mount_namespace = 0
        self.clone_in_progress: CloneRecord | None = None
        """The clone of this sandbox that is being made."""
        self.admit_clone: Callable[[JailRecord, socket.socket, socket.socket], None] | None = None
        self.started: set[ProcessRecord] = set()
        """Processes that the host started beside the guest."""
        self.ended_cpu_seconds = 0.0
        """CPU time of those that have ended: pid 1 is not their parent, so it does not count it."""
        self.give_back: Callable[[Cgroup], bool] | None = None
        """Takes its control group back for reuse; None: the group is removed."""

    @abstractmethod
    def guest_pid(self) -> int:
        """Return the guest's pid in the supervisor's namespace; 0 without one."""

    @abstractmethod
    def roots(self) -> list[int]:
        """Return the pids that all other processes descend from; empty before the start."""

    def walls(self) -> steps.Jail:
        """Return what a process needs to take the steps JOINED: here, those of a forked guest."""
        limits = self.limits or NO_LIMITS
        if self.cgroup is not None:  # it counts the processes of each clone separately
            limits = dataclasses.replace(limits, processes=None)
        assert self.shared_jail is not None
        who = self.shared_jail.user
        return steps.Jail(limits=limits, binds=(), host_uid=None, forked=True, user=who)

    def entrance(self) -> joined.Entrance:
        """Open the namespaces and the root of the guest's process.

        SECURITY: it cannot change them itself. The pid was not reused if it is still the guest's.
        """
        pid = self.guest_pid()
        entrance = joined.Entrance.of(str(pid))
        if not pid or self.guest_pid() != pid:
            raise ProcessLookupError(0, "the guest has ended")
        return entrance

    def _guest_pidfd(self) -> int | None:
        """Return a pidfd of the guest, if there is one."""
        return None

    @abstractmethod
    def _signal_guest(self) -> None:
        """Send SIGINT to the guest."""

    @abstractmethod
    def _signal_all(self) -> None:
        """Send SIGKILL to every process."""

    @abstractmethod
    def _release(self) -> None:
        """Close descriptors and remove files."""

    def kill(self) -> None:
        """Kill every process of the sandbox."""
        if not self._killed:
            self._killed = self.due = True
            self._kill_deadline = time.monotonic() + KILL_PATIENCE_SECONDS
        self.leave()

    def leave(self) -> None:
        """Kill this session: the whole jail, unless other sessions share it."""
        if self._gone or self._reaped:
            return  # the pids may have been reused
        self._gone = self.due = True
        self._end_network_helper()
        for process in list(self.started):
            process.kill()
        if self.shared_jail is None:
            self._signal_all()
        else:
            self.shared_jail.leave(self)

    def all_gone(self) -> None:
        """Note that no process is left."""
        self._reaped = self.due = True

    def retire(self) -> None:
        """End when no other sandbox depends on this one: at once, except for a zygote host."""
        self.kill()

    def wake(self) -> None:  # noqa: B027 - most wait for none
        """Let processes of ours that this sandbox waits for go on, if they were stopped."""

    def needs_attention(self) -> bool:
        """Return whether to check it again later: memory to measure, a group to remove."""
        return self._reaped or self._killed or self.leaving() or self._measured()

    def leaving(self) -> bool:
        """Return whether it has left a shared jail and may have left processes there."""
        lives_on = self.shared_jail is not None and bool(self.shared_jail.sessions)
        return self._gone and lives_on and not self.end_reported

    def check_memory(self) -> None:
        """Kill a sandbox whose processes together exceed the limit, where no control group does."""
        started, spent = time.monotonic(), time.process_time()
        if not self._measured() or self._reaped or started < self._measure_at:
            return
        assert self.limits is not None
        assert self.limits.memory is not None
        try:
            pids = self._processes()
            exceeds = pids and self._exceeds(self.limits.memory + MEMORY_SLACK, pids)
        except OSError:  # no descriptor is free, for a moment: this sandbox has no part in it
            self._unmeasured += 1
            if self._unmeasured > MAX_UNMEASURED:
                raise
            return
        self._unmeasured = 0
        if exceeds:
            self._over_memory = True
            self.kill()
        took = time.process_time() - spent  # not the time that others had the core for
        self._measure_at = started + took * MEASURE_PAUSE

    def _exceeds(self, limit: int, pids: list[int]) -> bool:
        """Return whether processes together hold more than a limit beside the shared context."""
        limit += self.limits.context if self.limits else 0
        return meter.memory_bytes(pids[0], pids[1:], limit) > limit

    def is_over(self) -> bool:
        """Return whether its processes have ended and its control group is removed."""
        overdue = time.monotonic() > self._kill_deadline
        if overdue or (self.leaving() and self._killed_in_shared_jail()):
            self._report_end()
        if not self._reaped:
            return False
        if self._deadline is None:
            self._deadline = time.monotonic() + GROUP_PATIENCE_SECONDS
            self._final = self._report()
        if self._left_group():
            self.cgroup = None
            return True
        return time.monotonic() > self._deadline

    def _left_group(self) -> bool:
        """Return whether its control group is removed, or given back for reuse."""
        if self.cgroup is None:
            return True
        return self.cgroup.remove() if self.give_back is None else self.give_back(self.cgroup)

    def close(self) -> None:
        """Report how it ended, and release all resources."""
        self._release()
        self._end_network_helper()
        self._keep_passed_fds([])
        self._report_end()

    def _killed_in_shared_jail(self) -> bool:
        """Kill its processes in a shared jail; return whether none was left."""
        assert self.shared_jail is not None
        if self.cgroup is not None and not self.cgroup.emptied():
            return False
        if self.started:  # until they are reaped, pid 1 does not have what they started
            return False
        self.shared_jail.kill_privileged()
        scans = SCANS if self.cgroup is None else 1  # an emptied group starts no more processes
        return not self.mount_namespace or self.shared_jail.evict(self.mount_namespace, scans)

    def _report_end(self) -> None:
        if self.end_reported:
            return
        self.end_reported = True
        self._unwatch(self.lease.fileno())
        final = self._final or self._report()
        self.tell("failed" if self._failure else "ended", **final)
        self.lease.close()

    def fail(self, reason: str) -> None:
        """Note why it could not be started; the first reason is kept."""
        self._failure = self._failure or reason

    def tell(self, event: str, **fields: Any) -> None:
        """Send the host an event."""
        with contextlib.suppress(OSError):
            packets.send(self.lease, event, **fields)

    def _started(self) -> None:
        self.tell(
            "started",
            cgroup=self.cgroup.version if self.cgroup else None,
            usage=self.usage_source(),
        )

    def usage_source(self) -> dict[str, Any]:
        """Return where the host reads CPU time and memory: see atoll.jail.measure.usage."""
        source = self.cgroup.usage_source() if self.cgroup else {"files": {}}
        if len(source["files"]) == 2:
            return source
        if pid := self.guest_pid():
            return {**source, "pid": pid, "forked": self.shared_jail is not None}
        return {**source, "parent": next(iter(self.roots()), 0)}

    def _on_command(self) -> None:
        """Carry out a command from the lease; kill the sandbox when the lease is closed."""
        try:
            message = packets.receive(self.lease)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self.kill()
            self._unwatch(self.lease.fileno())
        else:
            self._obey(message.kind, message.fds)

    def _obey(self, command: str, fds: list[int]) -> None:
        if command == "give":
            self._keep_passed_fds(fds)
        elif command == "clone" and len(fds) == 2:
            self._clone(socket.socket(fileno=fds[0]), socket.socket(fileno=fds[1]))
        elif command == "start" and len(fds) == 2:
            self._start_process(packets.end(fds[0]), fds[1])
        elif command == "interrupt":
            self._signal_guest()
        elif command == "usage":
            self.tell("usage", cpu_seconds=self._cpu_seconds())
        elif command in ("folders", "network"):
            self._show(self._open_folders() if command == "folders" else self._listen())
        elif command == "enter" and fds:
            self._help_in_network(socket.socket(fileno=fds[0]))
        elif command in ("retire", "wake"):
            getattr(self, command)()
        else:
            self.kill()

    def _start_process(self, lease: socket.socket, spec_fd: int) -> None:
        """Start a process beside the guest; the host hears on its lease what becomes of it."""
        process = ProcessRecord(self, lease, self._selector)
        try:
            if self._gone or self._reaped:
                raise ProcessLookupError(0, "the sandbox has ended")
            process.start(spec_fd, switches=os.geteuid() == 0)
        except OSError as exc:
            refuse(lease, f"start: {exc}")
        else:
            self.started.add(process)
        finally:
            os.close(spec_fd)

    def started_pids(self) -> list[int]:
        """Return the pids of processes that the host started: pid 1 is not their parent."""
        return [process.pid for process in self.started if process.pid]

    def _show(self, fds: list[int]) -> None:
        """Let the host have descriptors that it asked for; none if all is gone."""
        try:
            with contextlib.suppress(OSError):
                packets.send(self.lease, "folders", fds)
        finally:
            packets.close_all(fds)

    def _open_folders(self) -> list[int]:
        """Open the folders through /proc/PID/root; check afterwards that the pid was not reused."""
        fds: list[int] = []
        pid = self.guest_pid()
        with contextlib.suppress(OSError):
            for folder in (*SHOWN_FOLDERS, *(self.limits or NO_LIMITS).folders):
                fd = os.open(f"/proc/{pid}/root{folder}", _SHOWN)
                fds.append(fd)
            if self.shared_jail is not None and self.shared_jail.root:
                fds.append(fetched_fd.fetch(lambda: cloned.open_upper(pid)))
            if pid and self.guest_pid() == pid:
                return fds
        packets.close_all(fds)
        return []

    def _listen(self) -> list[int]:
        """Return a socket that listens on the loopback of the jail; none if there is no jail."""
        if self._gone or self._reaped:
            return []
        try:
            network = self._open_network()
            try:
                return [loopback.listen_in(network)]
            finally:
                os.close(network)
        except OSError:
            traceback.print_exc()
            return []

    def _help_in_network(self, host: socket.socket) -> None:
        """Start a helper that serves the host in the jail's network, in place of an earlier one."""
        self._end_network_helper()
        with host:
            if self._gone or self._reaped:
                return  # the host finds the socket closed
            try:
                network = self._open_network()
                try:
                    pid = guest_sockets.start(network, host)
                finally:
                    os.close(network)
                self._network_helper = pid, pidfd_of(pid)
            except OSError as exc:
                with contextlib.suppress(OSError):
                    packets.send(host, "failed", reason=str(exc))
                return
        self._watch(self._network_helper[1], self._end_network_helper)

    def _end_network_helper(self) -> None:
        """Kill and reap the helper, which may have ended by itself."""
        if self._network_helper is None:
            return
        (pid, pidfd), self._network_helper = self._network_helper, None
        self._unwatch(pidfd)
        send_signal(pidfd, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pidfd)

    def _open_network(self) -> int:
        """Open the network namespace of the guest's process, which is that of its jail."""
        return os.open(f"/proc/{self.guest_pid()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def _keep_passed_fds(self, fds: list[int]) -> None:
        packets.close_all(self._passed_fds)
        self._passed_fds = deque(fds)

    def next_passed_fd(self) -> Reply:
        """Return the next descriptor for the guest.

        The host sends it before the request that needs it. So all that the host has sent is read
        first: a descriptor that an earlier, cancelled request left behind is replaced.
        """
        while not self._gone and packets.is_readable(self.lease.fileno()):
            self._on_command()
        if not self._passed_fds:
            return Reply()
        return Reply(passed_fd=self._passed_fds[0], on_accepted=self._passed_fd_taken)

    def _passed_fd_taken(self) -> None:
        os.close(self._passed_fds.popleft())
        if self.clone_in_progress is not None:
            self.clone_in_progress.guest_forks()

    def _clone(self, lease: socket.socket, status: socket.socket) -> None:
        """Prepare for a clone that the host is about to request; one at a time."""
        listener = self.shared_jail.listener if self.shared_jail else None
        able = listener is not None and listener.open
        if self.admit_clone is not None and able and self.clone_in_progress is None:
            self.admit_clone(self, lease, status)
            return
        reason = "clone: another one is being made" if able else "clone: this jail allows none"
        status.close()
        refuse(lease, reason)

    def _report(self) -> dict[str, Any]:
        if self._failure:
            return {"reason": self._failure}
        pidfd = self._guest_pidfd()
        if self._wait_status is None and pidfd is not None:  # another process has reaped it
            self._wait_status = syscalls.exit_status(pidfd)
        if self._wait_status is None:
            return {"out_of_memory": self._over_memory or self._group_killed()}
        status = self._wait_status
        # The OOM killer may have hit a grandchild long ago: it counts only if it hit the guest.
        ended = self._was_killed(status)
        return {
            "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "out_of_memory": (ended and self._group_killed()) or self._over_memory,
            "peak_memory": self.cgroup.peak_memory() if self.cgroup else None,
            "cpu_seconds": self.cgroup.cpu_seconds() if self.cgroup else None,
        }

    def _was_killed(self, status: int) -> bool:
        """Return whether a wait status can be that of a process which the kernel has killed."""
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def _group_killed(self) -> bool:
        try:
            return self.cgroup is not None and self.cgroup.oom_kills() > 0
        except OSError:
            return False  # unknown by now; the end must be reported anyway

    def _measured(self) -> bool:
        return self.cgroup is None and self.limits is not None and self.limits.memory is not None

    def _cpu_seconds(self) -> float:
        counted = self.cgroup.cpu_seconds() if self.cgroup else None
        if counted is not None:
            return counted
        return meter.cpu_seconds(self._processes()) + self.ended_cpu_seconds

    def _processes(self) -> list[int]:
        """Return the jail's first process and all processes of this sandbox."""
        pids = meter.processes([*self.roots(), *self.started_pids()])
        if not self.mount_namespace:
            return pids  # it never shared the jail
        return pids[:1] + [item for item in pids[1:] if namespace_of(item) == self.mount_namespace]

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)


def refuse(lease: socket.socket, reason: str) -> None:
    """Tell the host why there will be no sandbox; close the lease."""
    with lease, contextlib.suppress(OSError):
        packets.send(lease, "failed", reason=reason)

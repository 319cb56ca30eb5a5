"""Control groups: which ones are used, what is written to them, what is read, when they go.

No host has the controllers of both versions, and many let nobody use either, so most of this
runs on a made-up tree of plain files; what a kernel does with it is seen where there is one.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import atoll
from atoll.jail.measure import cgroup, meter
from atoll.jail.measure.cgroup import Cgroup, Groups, Hierarchies
from atoll.jail.supervisor.client import supervisor
from atoll.jail.supervisor.spec import Limits

LIMITS = Limits(memory=100 << 20, processes=10, disk=None, file_size=None, open_files=64)
NO_LIMITS = Limits(memory=None, processes=None, disk=None, file_size=None, open_files=64)


class Host:
    """A made-up host: its /proc/self and its control groups."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.top = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.top.mkdir()
        self._mounts, self._paths = ["25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw"], []

    def version_2(self, path: str) -> None:
        self._mounts.append(f"30 25 0:27 / {self.top} rw,nosuid shared:9 - cgroup2 cgroup2 rw")
        self._paths.append(f"0::{path}")

    def version_1(self, controllers: str, path: str) -> Path:
        mount = self.top / controllers
        mount.mkdir()
        line = f"31 25 0:28 / {mount} rw,nosuid shared:9 - cgroup cgroup rw,{controllers}"
        self._mounts.append(line)
        self._paths.append(f"4:{controllers}:{path}")
        return mount

    def group(self, path: str, enabled: str) -> Path:
        folder = self.top / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(enabled)
        (folder / "cgroup.procs").touch()
        return folder

    def find(self) -> Hierarchies | None:
        (self.proc / "mountinfo").write_text("".join(f"{line}\n" for line in self._mounts))
        (self.proc / "cgroup").write_text("".join(f"{line}\n" for line in self._paths))
        return cgroup.find(self.proc)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def group_with(folder: Path, version: int, **files: str) -> Cgroup:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return Cgroup(version, dict.fromkeys(("memory", "pids", "cpuacct"), folder))


def test_a_host_without_control_groups_has_none(host):
    assert host.find() is None


def test_a_kernel_without_control_groups_has_none(host):
    host.find()
    (host.proc / "cgroup").unlink()
    assert cgroup.find(host.proc) is None


def test_version_2_uses_our_own_group_if_it_hands_its_controllers_on(host):
    host.version_2("/user.slice/app.scope")
    host.group("", "cpu memory pids")
    host.group("user.slice", "cpu memory pids")
    own = host.group("user.slice/app.scope", "memory pids")
    found = host.find()
    assert (found.version, found.parents) == (2, {"memory": own, "pids": own})


def test_version_2_uses_the_nearest_parent_that_hands_both_controllers_on(host):
    host.version_2("/user.slice/session/app.scope")
    host.group("", "cpu memory pids")
    slice_ = host.group("user.slice", "cpu memory pids")
    host.group("user.slice/session", "pids")
    host.group("user.slice/session/app.scope", "")
    assert set(host.find().parents.values()) == {slice_}


def test_version_2_looks_no_higher_than_its_mount(host):
    host.version_2("/app.scope")
    host.group("", "cpu")
    host.group("app.scope", "")
    (host.top.parent / "cgroup.subtree_control").write_text("memory pids")
    (host.top.parent / "cgroup.procs").touch()
    assert host.find() is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_version_2_uses_no_group_that_is_not_ours_to_write(host):
    host.version_2("/")
    host.group("", "memory pids").chmod(0o555)
    assert host.find() is None
    host.top.chmod(0o755)


def test_version_2_without_processes_file_is_not_usable(host):
    host.version_2("/")
    (host.group("", "memory pids") / "cgroup.procs").unlink()
    assert host.find() is None


def test_version_2_with_a_path_outside_of_the_mount_takes_what_is_there(host):
    """In a container the path may be of the host's tree, and not exist here."""
    host.version_2("/system.slice/container-1.scope")
    top = host.group("", "memory pids")
    assert set(host.find().parents.values()) == {top}


def test_version_1_has_a_folder_a_controller(host):
    memory = host.version_1("memory", "/a")
    pids = host.version_1("pids", "/")
    both = host.version_1("cpu,cpuacct", "/b/c")
    (memory / "a").mkdir()
    (both / "b" / "c").mkdir(parents=True)
    found = host.find()
    assert found.version == 1
    assert found.parents == {"memory": memory / "a", "pids": pids, "cpuacct": both / "b" / "c"}


def test_version_1_does_without_accounting_but_not_without_memory(host):
    host.version_1("pids", "/")
    assert host.find() is None
    host.version_1("memory", "/")
    assert set(host.find().parents) == {"memory", "pids"}


def test_on_a_host_with_both_version_2_is_taken_if_it_is_usable(host):
    host.version_1("memory", "/")
    host.version_1("pids", "/")
    host.version_2("/")
    assert host.find().version == 1
    host.group("", "memory pids")
    assert host.find().version == 2


def test_version_2_limits_are_written(tmp_path):
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "memory.swap.max").write_text("max")
    group = Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}).create("box", LIMITS)
    assert _files(tmp_path / "box") == {
        "memory.max": str((100 << 20) + cgroup.RUNTIME_MEMORY),
        "memory.swap.max": "0",
        "pids.max": str(10 + cgroup.RUNTIME_PROCESSES),
    }
    assert group.folders == {"memory": tmp_path / "box", "pids": tmp_path / "box"}


def test_version_2_on_a_host_without_swap_writes_no_swap_limit(tmp_path):
    Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}).create("box", LIMITS)
    assert set(_files(tmp_path / "box")) == {"memory.max", "pids.max"}


def test_version_1_limits_are_written(tmp_path):
    parents = {name: tmp_path / name for name in ("memory", "pids", "cpuacct")}
    for parent in parents.values():
        (parent / "box").mkdir(parents=True)
    (parents["memory"] / "box" / "memory.memsw.limit_in_bytes").write_text("-1")
    Hierarchies(1, parents).create("box", LIMITS)
    limit = str((100 << 20) + cgroup.RUNTIME_MEMORY)
    assert _files(parents["memory"] / "box") == {
        "memory.limit_in_bytes": limit,
        "memory.memsw.limit_in_bytes": limit,
    }
    assert _files(parents["pids"] / "box") == {"pids.max": str(10 + cgroup.RUNTIME_PROCESSES)}
    assert _files(parents["cpuacct"] / "box") == {}


def test_no_limit_writes_nothing(tmp_path):
    Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}).create("box", NO_LIMITS)
    assert _files(tmp_path / "box") == {}


def test_a_group_that_cannot_be_limited_is_removed_again(tmp_path):
    memory, pids = tmp_path / "memory", tmp_path / "pids"
    (pids / "box" / "pids.max").mkdir(parents=True)  # writing to it fails
    memory.mkdir()
    processes_only = dataclasses.replace(LIMITS, memory=None)
    with pytest.raises(IsADirectoryError):
        Hierarchies(1, {"memory": memory, "pids": pids}).create("box", processes_only)
    assert list(memory.iterdir()) == []


def test_a_group_that_cannot_be_made_leaves_none_of_its_folders(tmp_path):
    memory = tmp_path / "memory"
    memory.mkdir()
    parents = {"memory": memory, "pids": tmp_path / "missing"}
    with pytest.raises(FileNotFoundError):
        Hierarchies(1, parents).create("box", LIMITS)
    assert list(memory.iterdir()) == []


def test_out_of_memory_kills_are_read(tmp_path):
    events = "low 0\nhigh 3\nmax 19\noom 2\noom_kill 2\noom_group_kill 0\n"
    assert group_with(tmp_path, 2, memory__events=events).oom_kills() == 2
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"
    assert group_with(tmp_path, 1, memory__oom_control=control).oom_kills() == 5


def test_kernels_before_4_13_tell_no_out_of_memory_kills(tmp_path):
    control = "oom_kill_disable 0\nunder_oom 0\n"
    assert group_with(tmp_path, 1, memory__oom_control=control).oom_kills() == 0


def test_peak_memory_is_read(tmp_path):
    assert group_with(tmp_path, 2, memory__peak="12345678\n").peak_memory() == 12_345_678
    group = group_with(tmp_path, 1, memory__max_usage_in_bytes="77\n")
    assert group.peak_memory() == 77


def test_peak_memory_is_unknown_on_older_kernels(tmp_path):
    assert group_with(tmp_path, 2).peak_memory() is None


def test_processor_time_is_read(tmp_path):
    stat = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 0\n"
    assert group_with(tmp_path, 2, cpu__stat=stat).cpu_seconds() == 2.5
    assert group_with(tmp_path, 1, cpuacct__usage="1500000000\n").cpu_seconds() == 1.5


def test_processor_time_is_unknown_where_nobody_counts(tmp_path):
    assert group_with(tmp_path, 2).cpu_seconds() is None
    assert Cgroup(1, {"memory": tmp_path, "pids": tmp_path}).cpu_seconds() is None


def test_sweeping_removes_the_groups_of_dead_supervisors_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "INITIAL_PID_NAMESPACE", 0)  # so we do not see all processes
    dead, here = _unused_pid(), os.stat("/proc/self/ns/pid").st_ino
    names = [
        *(f"atoll-{dead}-{here}-1", f"atoll-{dead}-{here}-22"),
        *(f"atoll-{os.getpid()}-{here}-1", f"atoll-x-{here}-1", "other"),
        f"atoll-{dead}-{here + 1}-1",  # of another pid namespace, where it may live
    ]
    for name in names:
        (tmp_path / name).mkdir()
    Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}).sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[2:])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the namespaces of all processes")
def test_sweeping_removes_the_groups_of_a_namespace_that_is_gone(tmp_path, monkeypatch):
    here = os.stat("/proc/self/ns/pid").st_ino
    monkeypatch.setattr(cgroup, "INITIAL_PID_NAMESPACE", here)
    names = [f"atoll-7-{gone}-1" for gone in (1, 2)] + [f"atoll-{os.getpid()}-{here}-1"]
    for name in names:
        (tmp_path / name).mkdir()
    Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}).sweep()
    assert [path.name for path in tmp_path.iterdir()] == names[2:]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace")
def test_sweeping_leaves_the_groups_of_a_namespace_that_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "INITIAL_PID_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "sh", "-c", "echo; read line"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdin
        assert other.stdout
        other.stdout.readline()
        child = Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text().split()[0]
        folder = tmp_path / f"atoll-7-{os.stat(f'/proc/{child}/ns/pid').st_ino}-1"
        folder.mkdir()
        Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}).sweep()
        assert folder.exists()
        other.stdin.close()
    Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}).sweep()
    assert not folder.exists()


def test_sweeping_leaves_a_group_that_is_not_empty(tmp_path):
    folder = tmp_path / f"atoll-{_unused_pid()}-{os.stat('/proc/self/ns/pid').st_ino}-1"
    (folder / "child").mkdir(parents=True)
    Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}).sweep()
    assert folder.exists()


def test_removing_says_whether_it_is_done(tmp_path):
    folders = {"memory": tmp_path / "m", "pids": tmp_path / "p"}
    group = Cgroup(1, folders)
    (folders["memory"] / "still in use").mkdir(parents=True)
    folders["pids"].mkdir()
    assert group.remove() is False
    assert not folders["pids"].exists()
    (folders["memory"] / "still in use").rmdir()
    assert group.remove() is True
    assert group.remove() is True


def test_a_process_is_let_in_by_a_descriptor(tmp_path):
    for name in ("m", "p"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    group = Cgroup(1, {"memory": tmp_path / "m", "pids": tmp_path / "p"})
    fds = group.open()
    assert not any(os.get_inheritable(fd) for fd in fds)
    cgroup.admit(fds, 4711)
    assert {(tmp_path / name / "cgroup.procs").read_text() for name in "mp"} == {"4711"}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fds[0])


@pytest.mark.parametrize(("version", "file"), [(1, "tasks"), (2, "cgroup.procs")])
def test_a_process_that_enters_by_itself_enters_as_a_thread_where_that_is_possible(
    tmp_path, version, file
):
    (tmp_path / file).touch()
    group = Cgroup(version, {"memory": tmp_path, "pids": tmp_path})
    cgroup.admit(list(group.entrances), 0)
    assert (tmp_path / file).read_text() == "0"


@pytest.mark.parametrize("version", [1, 2])
def test_the_own_group_is_opened_where_groups_are_made_in_it(tmp_path, version):
    (tmp_path / "cgroup.procs").touch()
    groups = Groups(Hierarchies(version, dict.fromkeys(cgroup.NEEDED, tmp_path)))
    opened = groups.open_own()
    assert (opened is not None) == (version == 1)
    if opened is not None:
        assert os.path.samestat(os.fstat(opened), os.stat(tmp_path / "cgroup.procs"))
        os.close(opened)
    (tmp_path / "cgroup.procs").unlink()
    assert groups.open_own() is None


def test_a_real_sandbox_has_a_group_of_its_own_while_it_lives():
    hierarchies = cgroup.find()
    if hierarchies is None:
        pytest.skip("this host lets us use no control groups")
    parents = set(hierarchies.parents.values())
    others = {group.name for parent in parents for group in _groups(parent) if _members(group)}
    with atoll.create_sandbox() as one, atoll.create_sandbox() as other:
        for box in (one, other):
            box.execute("import subprocess; child = subprocess.Popen(['sleep', '300'])")
        for parent in parents:
            groups = [group for group in _groups(parent, but=others) if _members(group)]
            members = [set((group / "cgroup.procs").read_text().split()) for group in groups]
            assert len(groups) == 2
            assert all(len(member) == 3 for member in members), members  # init, guest, its child
            assert not members[0] & members[1]
            known = set(map(str, meter.processes([supervisor.pid])))
            assert members[0] | members[1] <= known
        memory = hierarchies.parents["memory"]
        file = "memory.max" if hierarchies.version == 2 else "memory.limit_in_bytes"
        limit = one.inner.policy.memory_bytes + cgroup.RUNTIME_MEMORY
        used = [group for group in _groups(memory, but=others) if _members(group)]
        assert {int((group / file).read_text()) for group in used} == {limit}
    for parent in parents:
        assert _goes_away(lambda parent=parent: list(filter(_members, _groups(parent, but=others))))


def _groups(parent: Path, but: set[str] = frozenset()) -> list[Path]:
    found = parent.glob(f"{cgroup.PREFIX}{supervisor.pid}-*")
    return [group for group in found if group.name not in but]


def _members(group: Path) -> str:
    return (group / "cgroup.procs").read_text()


def _goes_away(look) -> bool:
    end = time.monotonic() + 30
    while look() and time.monotonic() < end:
        time.sleep(0.05)
    return not look()


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def _unused_pid() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text()) + 1


def reusable(tmp_path: Path, **files: str) -> Groups:
    """Groups on a made-up host of version 1, whose files say that nobody is there."""
    clean = {
        "pids.current": "0",
        "memory.oom_control": "oom_kill 0",
        "memory.usage_in_bytes": "4096",
        "memory.max_usage_in_bytes": "9000000",
        "cpuacct.usage": "123456",
    }

    class MadeUp(Hierarchies):
        def create(self, name, limits, runtime=cgroup.RUNTIME_PROCESSES):
            group = super().create(name, limits, runtime)
            for file, text in (clean | files).items():
                (group.folders["memory"] / file).write_text(text)
            return group

    return Groups(MadeUp(1, dict.fromkeys(("memory", "pids", "cpuacct"), tmp_path)))


def test_a_group_is_used_again_with_its_counters_reset(tmp_path):
    groups = reusable(tmp_path)
    first, _other = groups.take(LIMITS), groups.take(LIMITS)
    assert groups.give_back(first)
    assert groups.take(LIMITS) is first
    assert (first.peak_memory(), first.cpu_seconds()) == (0, 0.0)


@pytest.fixture
def kernel_removes(monkeypatch):
    """Groups go with their files, as the kernel's do, unless a process is there."""

    def rmdir(folder: Path) -> None:
        if (folder / "a process").exists():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        shutil.rmtree(folder)

    monkeypatch.setattr(Path, "rmdir", rmdir)


@pytest.mark.usefixtures("kernel_removes")
def test_a_group_of_a_start_that_failed_counts_as_used_no_more(tmp_path):
    groups = reusable(tmp_path)
    for _ in range(3):
        groups.give_up(groups.take(LIMITS))
    first, second = groups.take(LIMITS), groups.take(LIMITS)
    assert groups.give_back(first)
    assert groups.give_back(second)
    assert not list(tmp_path.iterdir())  # where nothing runs, none is kept


def test_a_group_is_not_used_again_with_other_limits(tmp_path):
    groups = reusable(tmp_path)
    first, _other = groups.take(LIMITS), groups.take(LIMITS)
    groups.give_back(first)
    assert groups.take(dataclasses.replace(LIMITS, memory=200 << 20)) is not first


@pytest.mark.parametrize(
    "left",
    [
        {"pids.current": "1"},
        {"memory.oom_control": "oom_kill 1"},
        {"memory.usage_in_bytes": str(64 << 20)},
    ],
)
def test_a_group_with_anything_of_a_guest_left_is_not_used_again(tmp_path, left):
    groups = reusable(tmp_path, **left)
    first, _other = groups.take(LIMITS), groups.take(LIMITS)
    assert not groups.give_back(first)  # plain files keep the folder from being removed
    assert groups.take(LIMITS) is not first


def test_a_group_that_was_closed_is_not_used_again(tmp_path):
    groups = reusable(tmp_path, **{"cgroup.procs": ""})
    first, _other = groups.take(LIMITS), groups.take(LIMITS)
    first.emptied()
    groups.give_back(first)
    assert groups.take(LIMITS) is not first


def test_a_kept_group_that_cannot_be_removed_at_once_is_tried_again(tmp_path, monkeypatch):
    groups = reusable(tmp_path)
    first, other = groups.take(LIMITS), groups.take(LIMITS)
    monkeypatch.setattr(Cgroup, "remove", lambda self: self is not first)
    groups.give_back(first)
    groups.give_back(other)
    assert groups.stuck == [first]
    monkeypatch.setattr(Cgroup, "remove", lambda _self: True)
    groups.remove_stuck()
    assert groups.stuck == []


def test_no_group_is_kept_when_none_is_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(Cgroup, "remove", lambda _self: True)
    groups = reusable(tmp_path)
    first, other = groups.take(LIMITS), groups.take(LIMITS)
    groups.give_back(first)
    groups.give_back(other)
    assert all(groups.take(LIMITS) is not one for one in (first, other))


FORK = """
import os, sys
from atoll.jail.walls import syscalls

try:
    syscalls.fork(0, 99_999)
except OSError as exc:
    print(exc.strerror, flush=True)
pid = syscalls.fork(0, os.open(sys.argv[1], os.O_RDONLY))
if pid == 0:
    print(*[line for line in open("/proc/self/cgroup") if line.startswith("0::")], flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture
def group_of_version_2():
    """A new group of version 2, with whatever controllers this host has there."""
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    tops = [Path(point) for _, point, kind, *_ in lines if kind == "cgroup2"]
    if not tops or not os.access(tops[0], os.W_OK):
        pytest.skip("no control groups of version 2 that can be used")
    folder = tops[0] / f"atoll-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    folder.rmdir()


def test_a_process_is_forked_into_a_group_of_version_2_or_not_at_all(group_of_version_2):
    command = [sys.executable, "-c", FORK, str(group_of_version_2)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"clone: Bad file descriptor\n0::/{group_of_version_2.name}\n\n"

"""gVisor as a process of the host: what it may do there, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sharing import shared_boxes

import atoll
from atoll.backends.gvisor import sandbox
from atoll.guest.core import relay
from atoll.jail.measure import cgroup, meter
from atoll.jail.supervisor.client import supervisor
from atoll.jail.walls.loopback import PROXY_ADDRESS

pytestmark = pytest.mark.usefixtures("gvisor_here")
PATIENCE_SECONDS = 20
ROOT = "/rootfs/opt/atoll"
NAMESPACES = ("user", "pid", "net", "ipc", "uts", "mnt")


def status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith(field))


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
    except OSError:
        return ""


def containers() -> dict[str, list[int]]:
    """The processes of gVisor below the supervisor, by what they are."""
    names = {pid: command(pid).split(" ")[0] for pid in meter.processes([supervisor.pid or 0])}
    return {
        kind: [pid for pid, name in names.items() if name in (f"runsc-{kind}", f"{ROOT}/{kind}")]
        for kind in ("sandbox", "gofer", "runsc")
    }


def wait_until(over) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not over():
        assert time.monotonic() < end, "it is not over"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def box(gvisor_here):
    with shared_boxes.keep("gvisor") as one:
        one.execute("x = 1")
        yield one


def test_the_guest_runs_on_another_kernel(box):
    found = box.execute("import os; os.uname().release, os.uname().nodename").value
    assert found[0] != os.uname().release
    assert found[1] == "atoll"


@pytest.mark.parametrize("kind", ["sandbox", "gofer"])
def test_kernel_and_file_server_are_filtered_without_rights_and_apart(box, kind):
    assert box.execute("x").value == 1
    (pid,) = containers()[kind][:1]
    assert status(pid, "Seccomp:") == "2"
    assert status(pid, "NoNewPrivs") == "1"
    for name in NAMESPACES:
        assert os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    if os.geteuid() == 0:
        assert int(status(pid, "Uid").split()[0]) > 0x10000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees another's mounts")
def test_they_see_no_host_path_but_read_only_ones(box):
    assert box.execute("x").value == 1
    for kind in ("runsc", "gofer", "sandbox"):
        (pid,) = containers()[kind][:1]
        lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        writable = {
            fields[fields.index("-") + 1]
            for fields in lines
            if "rw" in fields[5].split(",") and "/dev/" not in fields[4]
        }
        assert writable <= {"tmpfs", "proc"}, kind


def test_the_only_network_is_a_loopback_that_is_down(box):
    assert box.execute("x").value == 1
    (pid,) = containers()["sandbox"][:1]
    devices = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    assert {line.split(":")[0].strip() for line in devices} <= {"lo"}


def test_much_on_stderr_waits_for_the_host_to_read_it(box):
    result = box.execute("import sys; sys.stderr.write('x' * 5_000_000); 1")
    assert (result.value, result.error) == (1, None)


def test_the_runtime_s_folder_is_not_in_the_guest_s_root(box):
    code = "import os; sorted(set(os.listdir('/')) & {'run', 'rootfs'}), os.path.exists('/run')"
    assert box.execute(code).value == ([], False)


def newest_container() -> list[int]:
    """All processes of the container that was started last; pid 1 of its jail is the first."""
    starts = {pid: started_at(pid) for pid in meter.children(supervisor.pid or 0)}
    trees = {pid: meter.processes([pid]) for pid in starts}
    found = [pid for pid, tree in trees.items() if any("runsc" in command(one) for one in tree)]
    return trees[max(found, key=lambda pid: starts[pid])]


def started_at(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def named(tree: list[int], kind: str) -> int:
    """The process of a container that is the program, the kernel, the file server or a guest's."""
    if kind == "guest":  # gVisor's kernel has a child for all of the guest's processes
        return meter.children(meter.children(named(tree, "sandbox"))[0])[-1]
    names = (f"runsc-{kind}", f"{ROOT}/{kind}")
    return next(pid for pid in tree if command(pid).split(" ")[0] in names)


@pytest.mark.parametrize("kind", ["runsc", "sandbox", "gofer", "guest"])
def test_what_is_killed_from_outside_leaves_nothing_and_a_new_one_starts(kind):
    """gVisor does not notice that a guest's process was killed behind its back: time is up then."""
    seconds = 1 if kind == "guest" else 20
    with atoll.create_sandbox(backend="gvisor", timeout_ms=20_000) as box:
        tree = newest_container()
        born = {pid: started_at(pid) for pid in tree}
        os.kill(named(tree, kind), signal.SIGKILL)
        code = "import time; time.sleep(0.2); open('/app/f', 'w'); 6 * 7"
        result = box.execute(code, timeout_ms=seconds * 1000)
        assert result.value == 42 or result.kind in ("crashed", "error", "timeout")
        wait_until(lambda: not any(started_at(pid) == born[pid] for pid in tree))
        assert box.execute("6 * 7").value == 42


HOST = """
import sys, atoll
box = atoll.create_sandbox(backend="gvisor")
box.execute("import subprocess; subprocess.Popen(['sleep', '4242'])")
from atoll.jail.supervisor.client import supervisor
print(supervisor.pid, flush=True)
sys.stdin.read()
"""


def test_a_host_that_is_killed_leaves_nothing_behind(tmp_path):
    env = dict(os.environ, TMPDIR=str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path))
    host = subprocess.Popen(
        [sys.executable, "-c", HOST],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert host.stdin is not None
    assert host.stdout is not None
    helper = int(host.stdout.readline())
    processes = meter.processes([helper])
    assert any("runsc-sandbox" in command(pid) for pid in processes)
    mounts = Path("/proc/self/mountinfo").read_text()
    host.kill()
    host.wait()
    host.stdin.close()
    host.stdout.close()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in processes))
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert list(tmp_path.iterdir()) == []
    groups = cgroup.find()
    for parent in set(groups.parents.values()) if groups else ():
        assert not list(parent.glob(f"{cgroup.PREFIX}{helper}-*"))


def test_a_container_that_waits_is_taken_and_another_starts(monkeypatch):
    spare = sandbox.ParkedProcesses(sandbox.request_container, most=1)
    monkeypatch.setattr("atoll.backends.gvisor.sandbox.parked", spare)
    with atoll.create_sandbox(backend="gvisor") as first:
        wait_until(lambda: spare.waiting[0].ready)
        waiting = {*containers()["runsc"]}  # the one that waits is among them
        with atoll.create_sandbox(backend="gvisor", context="c" * 10) as second:
            assert second.execute("context").value == "c" * 10
            assert first.execute("1").value == 1
            assert len({*containers()["runsc"]} - waiting) <= 1
    spare.close()
    assert spare.count == 0


@pytest.mark.long
def test_a_container_that_was_killed_while_it_waited_is_not_used(monkeypatch):
    spare = sandbox.ParkedProcesses(sandbox.request_container, most=1)
    monkeypatch.setattr("atoll.backends.gvisor.sandbox.parked", spare)
    before = {*containers()["runsc"]}
    with atoll.create_sandbox(backend="gvisor"):
        wait_until(lambda: spare.waiting[0].ready)
    for pid in {*containers()["runsc"]} - before:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: spare.waiting[0].ended)
    with atoll.create_sandbox(backend="gvisor") as box:
        assert box.execute("6 * 7").value == 42
    spare.close()


def test_one_that_waits_is_not_used_for_a_folder_that_was_replaced(tmp_path):
    from atoll.jail.supervisor.spec import NO_LIMITS, Bind, JailSpec

    source = tmp_path / "library"
    source.mkdir()
    bind = Bind(source=str(source), target="/library")
    spec = JailSpec(jailed=True, argv=(), env={}, binds=(bind,), workspace=None, limits=NO_LIMITS)
    before = sandbox.Wanted.of(spec, network=False)
    assert before == sandbox.Wanted.of(spec, network=False)
    source.rename(tmp_path / "old")
    source.mkdir()
    assert before != sandbox.Wanted.of(spec, network=False)
    assert before != sandbox.Wanted.of(spec, network=True)


def test_the_relay_listens_where_the_proxy_is_announced():
    assert relay.ADDRESS == PROXY_ADDRESS


def test_guest_code_gets_no_user_namespace_and_so_no_capabilities(box):
    code = (
        "import ctypes, os, threading\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "NEW_USER = 0x10000000\n"
        "clone = 56 if os.uname().machine == 'x86_64' else 220\n"
        "failed = [libc.unshare(NEW_USER), libc.syscall(clone, NEW_USER | 17, 0, 0, 0, 0)]\n"
        "ran = []\n"
        "thread = threading.Thread(target=ran.append, args=(1,)); thread.start(); thread.join()\n"
        "rights = [line.split()[1] for line in open('/proc/self/status') if line[:4] == 'CapE']\n"
        "failed, ran, os.waitstatus_to_exitcode(os.system('true')), rights"
    )
    assert box.execute(code).value == ([-1, -1], [1], 0, ["0000000000000000"])

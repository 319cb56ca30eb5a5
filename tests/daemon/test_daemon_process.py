"""The daemon as a process: where it lives, how it starts, how it ends, what is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ordinary_user import USER, python_for_user, run_as_user

import atoll
from atoll.config import daemon_socket
from atoll.daemon import lifecycle, process
from atoll.daemon.paths import AlreadyRunningError, DaemonPaths
from atoll.hosting.limits import DaemonLimits


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where a daemon of this test may live; it is ended with the test."""
    found = DaemonPaths(tmp_path / "folder" / "d.sock")
    found.prepare()
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(found.socket))
    yield found
    lifecycle.stop(found)


@pytest.fixture
def pid(place):
    return lifecycle.start(place, DaemonLimits(), tier="bare")


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def below(pid):
    """Every process below one, by what /proc says."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *below(child)]
    return found


def wait_until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def is_gone(pid):
    """Ended; a zombie that nobody has waited for is no process any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.spec("R0.19")
def test_a_started_daemon_serves_and_is_its_users_alone(place, pid):
    assert lifecycle.status(place)["pid"] == pid
    assert [mode(one) for one in (place.socket, place.lock, place.log)] == [0o600] * 3
    assert mode(place.socket.parent) == 0o700
    with atoll.create_sandbox() as box:
        assert (box.backend, box.execute("6 * 7").value) == ("daemon", 42)
        assert os.getsid(pid) != os.getsid(0)


def test_the_socket_is_private_whatever_the_umask(place):
    before = os.umask(0)
    try:
        place.listen().close()
        assert mode(place.socket) == 0o600
    finally:
        os.umask(before)
        place.socket.unlink()


@pytest.mark.parametrize(
    ("path", "message"),
    [("relative.sock", "must be absolute"), ("/tmp/" + "x" * 200, "at most 107 are possible")],
)
def test_a_path_that_cannot_be_is_said_clearly(path, message):
    with pytest.raises(atoll.ConfigError, match=message):
        DaemonPaths(Path(path))


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(atoll.ConfigError, match="others may write to"):
        DaemonPaths(folder / "d.sock").prepare()


def test_a_home_folder_that_is_not_there_is_not_made(tmp_path, monkeypatch):
    monkeypatch.delenv("ATOLL_DAEMON_SOCKET", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "no" / "home"))
    with pytest.raises(atoll.ConfigError, match="Choose another place with --socket"):
        DaemonPaths(daemon_socket()).prepare()
    assert not (tmp_path / "no").exists()
    monkeypatch.setenv("HOME", "")
    with pytest.raises(atoll.ConfigError, match="HOME is empty: set it"):
        daemon_socket()


def test_there_is_one_daemon_in_a_place(place, pid):
    before = os.stat(place.socket).st_ino
    with pytest.raises(AlreadyRunningError):
        lifecycle.start(place, DaemonLimits(), tier="bare")
    with pytest.raises(AlreadyRunningError):
        asyncio.run(process.serve(place, DaemonLimits(), lambda: None))
    assert os.stat(place.socket).st_ino == before
    assert lifecycle.status(place)["pid"] == pid


def test_many_starts_at_once_are_one_daemon(place):
    code = (
        "import sys\nfrom pathlib import Path\nfrom atoll.daemon import lifecycle\n"
        "from atoll.hosting.limits import DaemonLimits\nfrom atoll.daemon.paths import *\n"
        "try: lifecycle.start(DaemonPaths(Path(sys.argv[1])), DaemonLimits(), tier='bare'); print('started')\n"
        "except AlreadyRunningError: print('runs')"
    )
    command = [sys.executable, "-c", code, str(place.socket)]
    tries = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = sorted(one.communicate(timeout=60)[0].strip() for one in tries)
    assert said == ["runs", "runs", "runs", "started"]
    assert lifecycle.status(place) is not None


def test_the_socket_of_a_dead_daemon_is_replaced(place, pid):
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not place.claimed())
    assert place.socket.exists()
    assert lifecycle.status(place) is None
    again = lifecycle.start(place, DaemonLimits(), tier="bare")
    assert lifecycle.status(place)["pid"] == again != pid


def make_file(path):
    path.write_text("precious")


def make_link(path):
    path.symlink_to("/etc/hostname")


def make_foreign_socket(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def make_pipe(path):
    os.mkfifo(path)


FOREIGN = [make_file, Path.mkdir, make_link, make_foreign_socket, make_pipe]


@pytest.mark.parametrize("make", FOREIGN)
@pytest.mark.parametrize("name", ["socket", "lock", "log", "states"])
def test_a_file_that_is_not_the_daemons_is_refused_and_left_as_it_was(place, name, make):
    path = getattr(place, name)
    make(path)
    before = os.lstat(path)
    with pytest.raises(atoll.ConfigError, match="left untouched"):
        lifecycle.start(place, DaemonLimits(), tier="bare")
    with pytest.raises(atoll.ConfigError, match="left untouched"):
        asyncio.run(process.serve(place, DaemonLimits(), lambda: None))
    assert lifecycle.stop(place) is None
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_size) == (
        before.st_ino, before.st_mode, before.st_size,
    )  # fmt: skip
    assert os.listdir(place.socket.parent) == [path.name]


def test_a_live_socket_of_another_program_is_refused(place):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place.socket))
        sock.listen()
        with pytest.raises(atoll.ConfigError, match="a socket of another program"):
            lifecycle.start(place, DaemonLimits(), tier="bare")
        assert place.socket.exists()


def test_stop_leaves_a_file_that_took_the_sockets_place(place, pid):
    place.socket.rename(place.socket.with_name("moved"))
    place.socket.write_text("precious")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not place.claimed())
    assert place.socket.read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_said_clearly(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(atoll.ConfigError, match=r"cannot use the folder .*file"):
        DaemonPaths(tmp_path / "file" / "d.sock").prepare()


def test_a_daemon_that_cannot_start_says_why(place):
    os.close(place.claim())  # a daemon was here before, so the log is taken for its own
    place.log.mkdir()
    with pytest.raises(atoll.SandboxStartError, match="Is a directory"):
        lifecycle.start(place, DaemonLimits(), tier="bare")
    assert not place.claimed()
    place.log.rmdir()


@pytest.mark.spec("R0.19")
async def test_a_killed_daemon_leaves_no_jail_and_its_clients_are_told(place, pid):
    async with atoll.aio.create_sandbox(backend="daemon") as box:
        await box.execute("import subprocess; subprocess.Popen(['sleep', '300'])")
        cell = asyncio.create_task(box.execute("while True: pass"))
        await asyncio.sleep(0.3)
        family = below(pid)
        assert len(family) >= 3
        os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(atoll.SandboxLostError) as caught:
            await cell
        assert caught.value.retryable
        assert time.monotonic() - started < 30
        wait_until(lambda: all(is_gone(one) for one in family))
        with pytest.raises(atoll.SandboxLostError):
            await box.execute("1")
        with pytest.raises(atoll.BackendUnavailableError, match="atoll daemon start"):
            await box.initialize()
        lifecycle_start = asyncio.to_thread(lifecycle.start, place, DaemonLimits(), tier="bare")
        await lifecycle_start
        await box.initialize("again")
        assert (await box.execute("context")).value == "again"


def test_sessions_end_with_their_process_though_a_fork_of_it_lives_on(place, pid):
    code = (
        "import atoll, os, time\nbox = atoll.create_sandbox(backend='daemon')\n"
        "child = os.fork()\nif not child: time.sleep(300)\n"
        "print(child, flush=True)\ntime.sleep(300)"
    )
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(client.stdout.readline())
    try:
        assert lifecycle.status(place)["sessions"] == 1
        client.kill()
        wait_until(lambda: lifecycle.status(place)["sessions"] == 0)
        assert not is_gone(child)
    finally:
        os.kill(child, signal.SIGKILL)
        client.communicate()


async def test_a_daemon_that_is_told_to_stop_ends_all_and_tells_its_clients(place, pid):
    box = await atoll.aio.create_sandbox(backend="daemon")
    cell = asyncio.create_task(box.execute("while True: pass"))
    await asyncio.sleep(0.3)
    family = below(pid)
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(atoll.SandboxLostError, match="the daemon was stopped"):
        await cell
    wait_until(lambda: is_gone(pid))
    wait_until(lambda: all(is_gone(one) for one in family))
    assert not place.socket.exists()
    await box.destroy()


def test_another_user_is_refused_even_where_files_let_it_in(place, pid):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.chmod(place.socket, 0o777)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    here = os.open(place.socket.parent, os.O_PATH)
    child = os.fork()
    if child == 0:
        os.fchdir(here)  # inside already, where no folder above can keep it out
        os.chmod(".", 0o755)
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        try:
            sock.connect(place.socket.name)
            sock.sendall(b'{"jsonrpc":"2.0","id":"1","method":"ping"}\n')
            os._exit(0 if sock.recv(100) == b"" else 1)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        except BaseException:
            os._exit(2)
    os.close(here)
    sock.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert f"refused a connection: it belongs to user {USER}" in place.log.read_text()


ESCAPE = """
import socket
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
try:
    s.connect('/app/d.sock')
    s.sendall(b'{"jsonrpc":"2.0","id":"1","method":"ping"}\\n')
    print('SAID', s.recv(1000))
except OSError as exc:
    print('SAID', exc)
"""
AS_USER = f"""
import os, sys, tempfile
from pathlib import Path
import atoll
from atoll.daemon import lifecycle
from atoll.hosting.limits import DaemonLimits
from atoll.daemon.paths import DaemonPaths
with tempfile.TemporaryDirectory() as folder:
    place = DaemonPaths(Path(folder) / 'd.sock')
    os.environ['ATOLL_DAEMON_SOCKET'] = str(place.socket)
    lifecycle.start(place, DaemonLimits(), tier="bare")
    try:
        for backend in ('daemon', 'native'):
            with atoll.create_sandbox(backend=backend, workspace=folder) as box:
                print(box.execute({ESCAPE!r}).stdout)
        print(place.log.read_text())
    finally:
        lifecycle.stop(place)
"""


def test_a_guest_that_finds_the_socket_in_its_folder_is_refused():
    """As an ordinary user, whose guests run under its own id: only the namespaces tell."""
    if os.geteuid() == 0:
        done = run_as_user(python_for_user(), "-c", AS_USER, timeout=100)
    else:
        done = subprocess.run([sys.executable, "-c", AS_USER], capture_output=True, text=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("SAID")]
    assert len(said) == 2, done.stdout + done.stderr
    assert all(
        line
        in ("SAID b''", "SAID [Errno 104] Connection reset by peer", "SAID [Errno 32] Broken pipe")
        for line in said
    ), said
    assert done.stdout.count("it lives in other namespaces") == 2


def test_the_log_tells_nothing_of_what_is_run(place, pid):
    from atoll.backends.daemon import DaemonClientSandbox

    async def use():
        box = DaemonClientSandbox(keep=True)
        await box.initialize("secret-context")
        await box.execute("secret_variable = 'secret-value'; print('secret-output'); 1 / 0")
        await box.get_variable("secret_variable")
        with pytest.raises(atoll.VariableError):
            await box.execute("v = []\nv.append(v)")
            await box.get_variable("v")
        await box.destroy()
        return box.token

    token = asyncio.run(use())
    text = place.log.read_text()
    assert "started" in text
    assert "secret" not in text
    assert token not in text


def test_the_log_does_not_grow_for_ever(place, monkeypatch):
    monkeypatch.setattr(process, "LOG_BYTES", 10_000)
    with process.logging_to(place.log, process._LOG):
        for number in range(2000):
            process._LOG.info("line %d", number)
    files = list(place.log.parent.glob("d.sock.log*"))
    assert sum(one.stat().st_size for one in files) <= 20_000
    assert {mode(one) for one in files} == {0o600}
    assert place.log.read_text().endswith("line 1999\n")


@pytest.mark.long
def test_the_log_says_what_a_start_is_doing(place):
    lifecycle.start(place, DaemonLimits(), tier="bare")
    lifecycle.stop(place)
    log = place.log.read_text()
    assert "importing the libraries that warm sandboxes have" in log
    assert "tier bare is warm after" in log
    assert "trying out a sandbox" in log


def test_a_start_that_takes_long_is_waited_for_and_says_what_it_is_doing(monkeypatch):
    monkeypatch.setattr(lifecycle, "REPORT_SECONDS", 0.01)
    reading, writing = os.pipe()
    heard = []

    def on_wait(doing):
        heard.append(doing)
        os.write(writing, b"importing\n" if len(heard) == 1 else b"ready\n")

    try:
        assert lifecycle._wait_until_ready(reading, on_wait)
        assert heard == ["starting", "importing"]
        os.close(writing)
        assert not lifecycle._wait_until_ready(reading, on_wait)
    finally:
        os.close(reading)

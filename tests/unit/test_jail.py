"""A jail as it is seen from inside: what the guest is, what it finds, and what still works."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import atoll
from atoll.jail.measure import meter
from atoll.jail.supervisor.client import supervisor
from atoll.jail.supervisor.spec import Bind
from atoll.jail.walls import root, users

WAIT = 30_000
DEVICES = {"fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"}
DEVICES |= {"tty", "urandom", "zero"}


@pytest.fixture(scope="module")
def shared():
    """One jail for all tests that only look, and leave nothing behind."""
    with atoll.create_sandbox(timeout_ms=WAIT) as box:
        box.execute("import datetime, os, socket, subprocess, sys, threading")
        yield box


@pytest.fixture
def look(shared):
    """Runs a cell that must succeed, and hands over its value."""

    def run(code: str):
        result = shared.execute(code)
        assert result.success, result.stderr or result.error
        return result.value

    return run


@pytest.fixture
def fails(shared):
    """Runs a cell that must fail; the error's type."""

    def run(code: str) -> str | None:
        result = shared.execute(code)
        assert not result.success, result
        return result.error_type

    return run


def status(look) -> dict[str, str]:
    lines = look("open('/proc/self/status').read()").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_guest_is_uid_1000_with_no_other_group(look):
    assert look("[*os.getresuid(), *os.getresgid()]") == [1000] * 6
    assert set(look("os.getgroups()")) <= {1000, 65534}
    assert look("import pwd; tuple(pwd.getpwuid(os.getuid()))[0::5]") == ("guest", "/home/guest")
    assert look("import getpass; getpass.getuser()") == "guest"


def test_the_guest_has_no_capability_and_gains_none(look):
    found = status(look)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found[name], 16) == 0, name
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"


def test_the_guest_sees_its_own_processes_alone(look):
    pids = look("sorted(int(name) for name in os.listdir('/proc') if name.isdigit())")
    assert pids == [look("os.getpid()")]
    assert look("os.getppid()") == 1


@pytest.mark.parametrize(
    "what", ["mem", "environ", "maps", "fd", "root", "cwd", "cmdline", "status"]
)
def test_pid_1_is_hidden(fails, what):
    assert fails(f"import os; os.stat('/proc/1/{what}')") == "FileNotFoundError"


def test_the_host_s_name_is_hidden(look):
    assert look("import socket; socket.gethostname(), os.uname().nodename") == ("atoll", "atoll")


@pytest.mark.parametrize("file", ["self/mountinfo", "self/mounts", "mounts", "self/mountstats"])
def test_no_mount_is_listed(look, file):
    assert look(f"open('/proc/{file}').read()") == ""


@pytest.mark.parametrize(
    "folder", ["/", "/usr", "/usr/bin", "/etc", "/dev", "/mnt", "/opt", "/home", "/opt/atoll"]
)
def test_the_system_is_read_only(shared, folder):
    for code in (f"open('{folder}/new', 'w')", f"import os; os.mkdir('{folder}/new')"):
        result = shared.execute(code)
        assert result.error_type in ("OSError", "PermissionError"), result
        assert "Read-only" in result.error or "Permission denied" in result.error


@pytest.mark.parametrize(
    "file",
    [
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
        "/proc/sys/kernel/ns_last_pid", "/proc/sys/net/ipv4/tcp_rmem", "/proc/self/oom_score_adj",
        "/proc/self/comm", "/proc/self/uid_map", "/proc/self/setgroups", "/proc/sysrq-trigger",
    ],
)  # fmt: skip
def test_nothing_of_the_kernel_can_be_set(shared, file):
    result = shared.execute(f"open('{file}', 'w').write('1')")
    assert result.error_type in ("OSError", "PermissionError", "FileNotFoundError"), result


@pytest.mark.parametrize(
    "path",
    [
        "/boot", "/sys", "/run", "/var", "/srv", "/media", "/lost+found",
        "/etc/shadow", "/etc/hostname", "/etc/machine-id", "/etc/ssh", "/etc/resolv.conf",
        "/home/guest/.ssh", "/proc/kcore/x", "/dev/tty0", "/dev/kvm", "/dev/fuse",
        "/dev/mem", "/dev/mapper", "/dev/net",
    ],
)  # fmt: skip
def test_a_host_path_outside_of_the_binds_does_not_exist(look, path):
    assert look(f"import os; os.path.lexists({path!r})") is False


def test_the_root_has_the_known_folders_alone(look):
    known = {
        "app", "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "mnt", "opt", "proc", "sbin",
        "tmp", "usr", ".box",
    }  # fmt: skip
    prefixes = look("import sys; [sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)]")
    binds = {path.split("/")[1] for path in prefixes}
    assert set(look("os.listdir('/')")) <= known | binds


def test_this_test_s_own_file_is_not_there(look):
    assert look(f"os.path.exists({str(Path(__file__).resolve())!r})") is False


def test_folders_on_the_way_to_the_interpreter_cannot_be_listed(look, fails):
    """A prefix such as /home/me/venv must not make /home/me visible."""
    prefixes = look("[sys.prefix, sys.base_prefix]")
    for prefix in prefixes:
        parent = os.path.dirname(prefix)
        if (
            not any(f"{parent}/".startswith(f"{one}/") for one in (*prefixes, "/usr"))
            and parent != "/"
        ):
            assert fails(f"os.listdir({parent!r})") == "PermissionError"


def test_terminals_are_the_jails_own(look):
    master, slave = os.openpty()
    try:
        assert look("os.listdir('/dev/pts')") == ["ptmx"]
    finally:
        os.close(master)
        os.close(slave)


def test_there_are_no_devices_but_the_harmless_ones(look):
    assert set(look("os.listdir('/dev')")) == DEVICES
    assert look("open('/dev/null', 'w').write('x'), open('/dev/zero', 'rb').read(2)") == (
        1,
        b"\0\0",
    )
    assert look("len(open('/dev/urandom', 'rb').read(8)), len(os.urandom(8))") == (8, 8)


def test_a_full_device_is_full(fails):
    assert fails("with open('/dev/full', 'w') as file: file.write('x')") == "OSError"


def test_standard_streams_are_where_programs_look_for_them(shared):
    result = shared.execute("with open('/dev/stdout', 'w') as out: out.write('hello')")
    assert result.success, result
    assert result.stdout == "hello"
    result = shared.execute(
        "import os; os.system('echo out > /dev/stdout; echo err > /dev/stderr')"
    )
    assert (result.value, result.stdout, result.stderr) == (0, "out\n", "err\n")


def test_loopback_is_up_and_a_server_can_be_reached(look):
    code = """
import socket, threading
def serve(server):
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
def ask(family, address):
    with socket.create_server((address, 0), family=family) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with socket.create_connection(server.getsockname()[:2], timeout=5) as client:
            client.sendall(b"hello")
            answer = client.recv(100)
        thread.join()
    return answer
"""
    look(code)
    assert look("ask(socket.AF_INET, '127.0.0.1')") == b"HELLO"
    assert look("ask(socket.AF_INET, 'localhost')") == b"HELLO"
    if Path("/proc/net/if_inet6").exists():
        assert look("ask(socket.AF_INET6, '::1')") == b"HELLO"


@pytest.mark.parametrize("host", ["None", "'localhost'", "'127.0.0.1'"])
def test_an_asyncio_server_can_be_started(look, host):
    code = f"""
import asyncio
async def answer(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(answer, {host}, 0)
    port = server.sockets[0].getsockname()[1]
    address = server.sockets[0].getsockname()[0]
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(b"hello\\n")
    found = await reader.readline()
    writer.close()
    server.close()
    return found
asyncio.run(main())
"""
    assert look(code) == b"HELLO\n"


def test_a_web_server_and_its_client(look):
    code = """
import http.server, threading, urllib.request
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
open('/app/page.txt', 'w').write('a page')
page = urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/page.txt').read()
server.shutdown(); server.server_close(); os.remove('/app/page.txt')
page
"""
    assert look(code) == b"a page"


@pytest.mark.parametrize("address", ["1.1.1.1", "10.0.0.1", "169.254.169.254", "192.168.0.1"])
def test_there_is_no_other_network(shared, address):
    result = shared.execute(
        f"import socket; socket.create_connection(({address!r}, 80), timeout=3)"
    )
    assert result.error_type == "OSError"
    assert f"[Errno {errno.ENETUNREACH}]" in result.error


def test_there_is_no_name_service(fails):
    assert fails("import socket; socket.getaddrinfo('example.com', 80)") == "socket.gaierror"


def test_app_and_mnt_data_are_one_folder(look):
    assert look("os.getcwd()") == "/app"
    assert look("os.path.samefile('/app', '/mnt/data')") is True
    assert look("open('/mnt/data/one.txt', 'w').write('1'); open('/app/one.txt').read()") == "1"
    look("os.remove('/app/one.txt')")


@pytest.mark.parametrize("folder", ["/app", "/tmp", "/home/guest", "/dev/shm"])
def test_private_folders_are_writable_and_close_to_others(look, folder):
    look(f"path = os.path.join({folder!r}, 'new'); open(path, 'w').write('x'); os.remove(path)")
    assert look(f"oct(os.stat({folder!r}).st_mode), os.stat({folder!r}).st_uid") == (
        "0o40700",
        1000,
    )


def test_home_is_home(look):
    assert look("os.path.expanduser('~'), os.environ['HOME']") == ("/home/guest", "/home/guest")


def test_temporary_files(look):
    code = """
import tempfile
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
    file.write(b'x' * 1000); file.flush()
    size = os.path.getsize(file.name)
with tempfile.TemporaryFile() as nameless, tempfile.SpooledTemporaryFile(10) as spooled:
    nameless.write(b'1'); spooled.write(b'1' * 100)
tempfile.gettempdir(), size
"""
    assert look(code) == ("/tmp", 1000)


def test_subprocesses(look):
    look("import subprocess, sys")
    assert look("subprocess.run(['echo', 'a'], capture_output=True, text=True).stdout") == "a\n"
    assert (
        look("subprocess.check_output('echo a | tr a b; exit 0', shell=True, text=True)") == "b\n"
    )
    assert look("subprocess.run([sys.executable, '-c', 'raise SystemExit(3)']).returncode") == 3
    assert look("os.popen('ls /app').read()") == ""
    assert look("os.system('exit 2') >> 8") == 2
    kill = "p = subprocess.Popen(['sleep', '60']); p.terminate(); p.wait(5)"
    assert look(kill) == -15
    assert (
        look("subprocess.run(['cat'], input=b'x' * 200_000, capture_output=True).stdout[:2]")
        == b"xx"
    )


def test_fork_and_threads(look):
    fork = "pid = os.fork()\nif pid == 0: os._exit(7)\nos.waitpid(pid, 0)[1] >> 8"
    assert look(fork) == 7
    threads = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    total = sum(pool.map(lambda x: x * x, range(100)))
total
"""
    assert look(threads) == sum(x * x for x in range(100))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(look, method):
    """With a module of its own: what a cell defines is not to be found by a new interpreter."""
    code = f"""
import multiprocessing, sys
open('/app/work_{method}.py', 'w').write('def square(x): return x * x\\ndef put(q): q.put(42)')
sys.path.insert(0, '/app')
import work_{method} as work
context = multiprocessing.get_context({method!r})
queue = context.Queue()
process = context.Process(target=work.put, args=(queue,))
process.start()
answer = queue.get(timeout=20)
process.join()
with context.Pool(2) as pool:
    squares = pool.map(work.square, range(5))
sys.path.remove('/app'); os.remove('/app/work_{method}.py')
answer, squares, process.exitcode
"""
    assert look(code) == (42, [0, 1, 4, 9, 16], 0)


def test_a_pool_of_processes_and_shared_memory(look):
    code = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory, Lock, Value
import math
with ProcessPoolExecutor(2) as pool:
    answers = list(pool.map(math.factorial, [3, 4, 5]))
block = shared_memory.SharedMemory(create=True, size=4096)
block.buf[:2] = b'ab'
again = shared_memory.SharedMemory(block.name)
seen = bytes(again.buf[:2])
again.close(); block.close(); block.unlink()
counter = Value('i', 0)
with counter.get_lock(): counter.value += 1
answers, seen, counter.value
"""
    assert look(code) == ([6, 24, 120], b"ab", 1)


def test_asyncio_with_subprocesses(look):
    code = """
import asyncio, sys
async def main():
    process = await asyncio.create_subprocess_exec(
        sys.executable, '-c', 'print(input()[::-1])',
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate(b'abc\\n')
    shell = await asyncio.create_subprocess_shell('exit 5')
    slow = await asyncio.to_thread(sum, [1, 2])
    return out, process.returncode, await shell.wait(), slow
asyncio.run(main())
"""
    assert look(code) == (b"cba\n", 0, 5, 3)


def test_a_database_in_a_file(look):
    code = """
import sqlite3
with sqlite3.connect('/app/data.db') as db:
    mode = db.execute('pragma journal_mode=wal').fetchone()[0]
    db.execute('create table t (x)')
    db.executemany('insert into t values (?)', [(n,) for n in range(100)])
total = sqlite3.connect('/app/data.db').execute('select sum(x) from t').fetchone()[0]
db.close()
for name in os.listdir('/app'):
    os.remove('/app/' + name)
mode, total
"""
    assert look(code) == ("wal", 4950)


def test_time_zones_and_locales(look):
    code = """
import datetime, locale, time
locale.setlocale(locale.LC_ALL, 'C.UTF-8')
difference = time.time() - datetime.datetime.now(datetime.timezone.utc).timestamp()
abs(difference) < 5, locale.getpreferredencoding()
"""
    fine, encoding = look(code)
    assert (fine, encoding.upper()) == (True, "UTF-8")
    if Path("/usr/share/zoneinfo/Europe/Berlin").exists():
        look("import zoneinfo; berlin = zoneinfo.ZoneInfo('Europe/Berlin')")
        assert look("str(berlin.utcoffset(datetime.datetime(2024, 7, 1)))") == "2:00:00"
    assert look("open('/app/ä.txt', 'w').write('ß'); os.listdir('/app')") == ["ä.txt"]
    look("os.remove('/app/ä.txt')")


def test_archives_and_copies(look):
    code = """
import shutil, tarfile, zipfile, gzip
os.makedirs('tree/sub')
open('tree/sub/a.txt', 'w').write('a' * 1000)
os.symlink('sub/a.txt', 'tree/link'); os.link('tree/sub/a.txt', 'tree/hard')
shutil.make_archive('one', 'gztar', '.', 'tree'); shutil.make_archive('two', 'zip', '.', 'tree')
options = {'filter': 'data'} if hasattr(tarfile, 'data_filter') else {}
tarfile.open('one.tar.gz').extractall('out', **options)
zipfile.ZipFile('two.zip').extractall('out2')
shutil.copytree('tree', 'copy', symlinks=True); shutil.move('copy', 'moved')
os.chmod('moved/sub', 0o700); os.utime('moved/sub/a.txt', (1, 1))
texts = [open(folder + '/tree/sub/a.txt').read() for folder in ('out', 'out2')]
found = (texts[0] == texts[1], os.readlink('moved/link'))
for name in os.listdir('.'):
    shutil.rmtree(name) if os.path.isdir(name) else os.remove(name)
found, shutil.disk_usage('/app').total > 0
"""
    assert look(code) == ((True, "sub/a.txt"), True)


def test_signals_timers_and_memory_maps(look):
    code = """
import signal, mmap, time, select, fcntl, resource
hits = []
signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(0.2)
with open('/app/m', 'wb+') as file:
    file.truncate(8192); fcntl.flock(file, fcntl.LOCK_EX)
    with mmap.mmap(file.fileno(), 0) as view: view[:3] = b'abc'
    file.seek(0); start = file.read(3)
os.remove('/app/m')
anonymous = mmap.mmap(-1, 4096); anonymous[0] = 1
poll = select.epoll(); poll.close()
hits, start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
"""
    assert look(code) == ([1], b"abc", True)


def test_an_event_loop_stays_usable_after_everything(look):
    assert look("import asyncio; asyncio.run(asyncio.sleep(0, 'well'))") == "well"


def test_each_sandbox_is_another_user_of_the_host():
    if not users.may_switch():
        pytest.skip("only root can run guests as other users")
    supervisor.stop()  # and with it guests of the backend wasm that wait, who are users of another range
    with atoll.create_sandbox():
        before = _guests()
        with atoll.create_sandbox(), atoll.create_sandbox():
            guests = _guests()
        assert len(guests) == len(before) + 2
        first, last = users.FIRST_HOST_UID, users.FIRST_HOST_UID + users.HOST_UIDS
        for uids, gids in guests:
            assert len(set(uids)) == len(set(gids)) == 1
            assert first <= uids[0] < last
            assert uids == gids


def test_where_guests_cannot_be_other_users_they_are_the_caller():
    if users.may_switch():
        pytest.skip("root runs guests as other users")
    with atoll.create_sandbox():
        assert _guests() == {((os.getuid(),) * 4, (os.getgid(),) * 4)}


def _guests() -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Users and groups, as the host sees them, of all processes in jails."""
    pids = [pid for pid in meter.processes([supervisor.pid]) if pid != supervisor.pid]
    return {ids for ids in map(_ids, pids) if ids}


def _ids(pid: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return tuple(map(int, found["Uid"].split())), tuple(map(int, found["Gid"].split()))


def test_a_jail_that_cannot_be_built_leaves_no_descriptor_of_what_it_covers(tmp_path, monkeypatch):
    monkeypatch.setattr(root.sys, "clone_tree", lambda path: os.open(path, os.O_PATH))
    monkeypatch.setattr(root, "_PRIVATE", [str(tmp_path.parent)])
    binds = tuple(Bind(source="/usr", target=str(tmp_path)) for _ in range(3))
    opened = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="full"), root.uncovered(binds):
        raise OSError("full")
    assert os.listdir("/proc/self/fd") == opened
    monkeypatch.setattr(root.sys, "attach_tree", lambda *_: os.stat("/missing"))
    with pytest.raises(FileNotFoundError), root.uncovered(binds):
        pass
    assert os.listdir("/proc/self/fd") == opened

"""What programs that others wrote expect of a system: its files, terminals, refusals, processes."""

from __future__ import annotations

import errno

import pytest

from atoll import Capability

MOUNTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b'none', b'/app', b'tmpfs', 0, 0)
raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""

pytestmark = pytest.mark.needs(Capability.SUBPROCESS)


def test_root_nobody_and_the_guest_have_names(box):
    code = (
        "import grp, os, pwd\n"
        "users = [pwd.getpwuid(uid).pw_name for uid in (0, os.getuid(), 65534)]\n"
        "groups = [grp.getgrgid(gid).gr_name for gid in (0, os.getgid(), 65534)]\n"
        "users, groups, os.path.expanduser('~'), os.path.expanduser('~nobody')"
    )
    users, groups, home, nobodys = box.execute(code).value
    assert users == ["root", "guest", "nobody"]
    assert groups == ["root", "guest", "nogroup"]
    assert (home, nobodys) == ("/home/guest", "/nonexistent")


def test_services_protocols_and_the_release_are_there(box):
    code = (
        "import os, socket\n"
        "(socket.getservbyname('https', 'tcp'), socket.getservbyport(53, 'udp'),"
        " socket.getprotobyname('icmp'), os.path.getsize('/etc/os-release') > 0)"
    )
    assert box.execute(code).value == (443, "domain", 1, True)


def test_a_terminal_can_be_opened_and_a_program_run_in_it(box):
    code = (
        "import os, pty, subprocess\n"
        "master, slave = pty.openpty()\n"
        "done = subprocess.run(['sh', '-c', 'test -t 0 && tty'], stdin=slave, stdout=slave)\n"
        "os.read(master, 100), done.returncode, os.ttyname(slave)"
    )
    result = box.execute(code)
    assert result.value == (b"/dev/pts/0\r\n", 0, "/dev/pts/0"), result.stderr


def test_terminals_are_few_and_give_no_power_over_the_kernel(open_box):
    code = (
        "import errno, fcntl, os, struct, termios\n"
        "opened, failure = [], None\n"
        "while failure is None:\n"
        "    try: opened.append(os.openpty())\n"
        "    except OSError as exc: failure = exc.errno\n"
        "def tried(request, argument):\n"
        "    try: fcntl.ioctl(opened[0][1], request, argument)\n"
        "    except OSError as exc: return exc.errno\n"
        "SETD, STI = 0x5423, 0x5412\n"
        "len(opened), failure, tried(SETD, struct.pack('i', 21)), tried(STI, b'x')"
    )
    box = open_box()
    found, failure, discipline, injection = box.execute(code).value
    if box.backend == "gvisor":  # they are its own kernel's, which knows no such requests
        assert (failure, discipline, injection) == (errno.EMFILE, errno.ENOTTY, errno.ENOTTY)
        return
    assert (found, failure) == (16, errno.ENOSPC)
    assert (discipline, injection) == (errno.EPERM, errno.EPERM)


@pytest.mark.parametrize(
    "call",
    ["chown('a', 0, -1)", "lchown('a', -1, 5)", "setuid(0)", "setgid(0)", "setresuid(-1, 0, -1)"],
)
def test_an_id_that_the_guest_does_not_have_is_a_lack_of_rights(open_box, call):
    box = open_box()
    result = box.execute(f"import os\nopen('a', 'w').close()\nos.{call}")
    refused = "PermissionError: [Errno 1] Operation not permitted"
    if box.backend == "gvisor":  # its kernel names the id that is not mapped, before the right
        refused = "OSError: [Errno 22] Invalid argument"
    assert result.error == refused + (": 'a'" if "'a'" in call else "")
    assert box.execute("os.chown('a', 1000, -1); os.setresuid(1000, -1, 1000)").success


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.sethostname('other')",
        "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
        "import os; os.setgroups([0])",
        "import os; os.chroot('/')",
        MOUNTS,
    ],
)
def test_what_wants_a_privilege_is_refused_as_for_any_user(box, code):
    assert box.execute(code).error_type == "PermissionError"


def test_what_libraries_have_another_way_for_does_not_exist(box):
    if box.backend == "gvisor":
        pytest.skip("a kernel of its own has them, and counts their memory as the guest's")
    code = "import os\ntry: os.memfd_create('x')\nexcept OSError as exc: number = exc.errno\nnumber"
    assert box.execute(code).value == errno.ENOSYS


def test_what_stands_for_functions_of_python_has_their_module(box):
    code = "import inspect, signal\n[inspect.getfile.__module__, signal.default_int_handler.__module__]"
    assert box.execute(code).value == ["inspect", "signal"]


def test_input_does_without_an_output_that_can_be_flushed(box):
    code = (
        "import io, sys\n"
        "class Sink:\n    def write(self, text): pass\n"
        "real, sys.stdin, sys.stdout = (sys.stdin, sys.stdout), io.StringIO('line'), Sink()\n"
        "try:\n    line = input('? ')\n"
        "finally:\n    sys.stdin, sys.stdout = real\n"
        "line"
    )
    assert box.execute(code).value == "line"


@pytest.mark.parametrize(("ending", "status"), [("raise SystemExit(5)", 5), ("1 / 0", 1)])
def test_a_forked_child_ends_with_the_exit_code_of_its_cell(box, ending, status):
    code = f"import os\nif os.fork() == 0: {ending}\nos.waitstatus_to_exitcode(os.wait()[1])"
    assert box.execute(code).value == status


def test_an_error_of_the_compiler_shows_its_line(box):
    assert "    return n\n    ^^^^^^^^\nSyntaxError" in box.execute("n = 1\nreturn n").stderr

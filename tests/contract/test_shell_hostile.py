"""Sessions that spoil their own shell: the host goes on, and says in words what happened."""

from __future__ import annotations

import pytest

from atoll import Capability

pytestmark = pytest.mark.needs(Capability.SHELL)
AUDIT_HOOK = """
import sys
def no(event, args):
    if event == 'subprocess.Popen': sys.exit('no')
sys.addaudithook(no)
"""
EVIL_ERROR = """
import subprocess
class Evil(Exception):
    def __str__(self): raise self
def popen(*args, **options): raise Evil
subprocess.Popen = popen
"""


@pytest.fixture
def box(open_box):
    """One of its own for each test: what it spoils is not mended."""
    return open_box()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import os; os.close(1); os.close(2)", id="closed streams"),
        pytest.param("import os; n = os.open('/dev/null', 1); os.dup2(n, 1)", id="moved streams"),
        pytest.param("import os; os.waitpid = os.killpg = os.listdir = None", id="patched os"),
        pytest.param(
            "import posix; posix.waitpid = posix.killpg = posix.pidfd_open = None", id="posix"
        ),
        pytest.param("import time; time.sleep = time.monotonic = None", id="patched waits"),
        pytest.param("import signal; signal.signal(2, signal.SIG_IGN)", id="no SIGINT"),
        pytest.param(
            "open('bash', 'w').write('#!/bin/sh\\necho fake'); import os; os.chmod('bash', 0o755)\n"
            "os.environ['PATH'] = '/app:' + os.environ['PATH']",
            id="own bash",
        ),
        pytest.param("import os; os.environ.clear()", id="no environment"),
        pytest.param("import os; os.environ = 5", id="environment replaced"),
        pytest.param("import sys; sys.executable = None", id="no executable"),
        pytest.param("import sys; del sys.modules['subprocess']", id="forgotten module"),
        pytest.param("open('subprocess.py', 'w').write('1 / 0')", id="own module"),
        pytest.param(
            "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')", id="cwd"
        ),
        pytest.param(
            "import os; os.register_at_fork(before=lambda: 1 / 0, after_in_child=lambda: 1 / 0)",
            id="fork hooks",
        ),
    ],
)
def test_the_shell_works_all_the_same(box, code):
    box.execute(code)
    assert box.shell("echo real; exit 4").output == "real\n"
    response = box.shell("echo partial; sleep 60", timeout_ms=1500)
    assert (response.output, response.exit_code) == ("partial\n", 124)
    assert response.error == "the command took longer than 1500 ms and was ended"
    assert box.execute("6 * 7").value == 42


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import subprocess; subprocess.Popen = None", "TypeError"),
        ("import sys; sys.modules['subprocess'] = None", "ModuleNotFoundError"),
        ("import os; os.O_RDWR = None", "TypeError"),
        (AUDIT_HOOK, "SystemExit: no"),
        (EVIL_ERROR, "Evil"),
    ],
)
def test_a_shell_that_cannot_be_started_says_why(box, code, words):
    box.execute(f"x = 'kept'\n{code}")
    response = box.shell("true")
    assert (response.exit_code, response.output) == (126, "")
    assert response.error.startswith(f"the command could not be run: {words}")
    assert box.execute("x").value == "kept"


def test_a_handler_of_the_session_that_raises_ends_the_command(box):
    box.execute(
        "import signal\n"
        "def ring(*_): raise ValueError('ring')\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.3)"
    )
    response = box.shell("echo partial; sleep 60")
    assert (response.output, response.exit_code) == ("partial\n", 126)
    assert response.error == "the command could not be run: ValueError: ring"
    assert box.shell("pgrep sleep").output == ""


def test_an_exit_code_that_is_not_known_is_none(box):
    box.execute("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    response = box.shell("echo done; exit 3")
    assert (response.output, response.exit_code, response.error) == ("done\n", None, None)


@pytest.mark.parametrize(
    ("command", "exit_code", "words"),
    [
        (
            "kill -9 $PPID; while :; do :; done",
            137,
            "the guest's process was ended by signal 9 (SIGKILL)",
        ),
        ("kill -STOP $PPID; sleep 60", 124, "the command took longer than 1000 ms and was ended"),
    ],
)
def test_a_command_that_ends_its_session_says_so(box, command, exit_code, words):
    box.execute("x = 1")
    response = box.shell(f"echo partial; {command}", timeout_ms=1000)
    assert (response.output, response.exit_code) == ("partial\n", exit_code)
    assert response.error == f"{words}; the variables of the session are lost"
    result = box.execute("'x' in globals()")
    assert (result.value, result.state_lost) == (False, True)


def test_a_command_that_interrupts_its_session_is_interrupted_and_not_cancelled(box):
    box.execute("x = 'kept'")
    response = box.shell("kill -INT $PPID; sleep 60")
    assert (response.exit_code, response.error) == (130, "the command was interrupted")
    assert box.execute("x").value == "kept"


@pytest.mark.parametrize(
    "answer",
    ["{'exit_code': 256}", "{'exit_code': -1}", "{'exit_code': True}", "{'exit_code': '0'}",
     "{'exit_code': 1.0}", "{'exit_code': [[]]}", "{}", "[]", "None", "'x'"],
)  # fmt: skip
def test_an_answer_of_another_shape_ends_the_guest(box, answer):
    box.execute(
        "def forge():\n"
        "    import sys\n"
        "    frame = sys._getframe()\n"
        "    while not hasattr(frame.f_locals.get('self'), '_methods'): frame = frame.f_back\n"
        f"    frame.f_locals['self']._methods['shell'] = lambda _params: {answer}\n"
        "forge()"
    )
    response = box.shell("true")
    assert response.exit_code == 70
    assert response.error == (
        "the guest broke the protocol and was ended: an answer of no known shape; "
        "the variables of the session are lost"
    )
    assert box.shell("echo again").output == "again\n"


def test_a_guest_that_forgets_how_is_ended_in_words(box):
    box.execute(
        "import gc\n"
        "gc.unfreeze()  # a zygote has frozen what its guests inherit\n"
        "for one in gc.get_objects():\n"
        "    if type(one).__name__ == 'ProcessServer': del one._methods['shell']"
    )
    response = box.shell("true")
    assert response.exit_code == 70
    assert "it refused to run: no method shell" in response.error


def test_a_flood_of_output_is_bounded_and_stopped(box):
    response = box.shell("yes", timeout_ms=500)
    assert (response.exit_code, response.truncated) == (124, True)
    assert len(response.output) <= 1_000_000
    assert box.shell("echo still here").output.endswith("still here\n")

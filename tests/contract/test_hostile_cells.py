"""What a cell does to its interpreter breaks no later cell; if it does, the result says so."""

from __future__ import annotations

import pytest

from atoll import Capability

pytestmark = pytest.mark.needs(Capability.IMPORTS)

CHANGED = {
    # Modules that are replaced, or gone.
    "fake linecache": "import sys, types; sys.modules['linecache'] = types.ModuleType('linecache')",
    "linecache is None": "import sys; sys.modules['linecache'] = None",
    "linecache raises": """
import sys
class Module:
    def __getattr__(self, name): raise SystemExit(name)
sys.modules['linecache'] = sys.modules['traceback'] = sys.modules['warnings'] = Module()
""",
    "every module is fake": """
import sys, types
for name in list(sys.modules):
    if name != '__main__': sys.modules[name] = types.ModuleType(name)
""",
    "no modules": "import sys; sys.modules.clear()",
    "another dict of modules": "import sys; sys.modules = {}",
    "sys.modules is None": "import sys; sys.modules = None",
    "odd names of modules": "import sys; sys.modules[5] = sys.modules[None] = 1",
    # Attributes of modules.
    "traceback": """
import traceback
for name in dir(traceback):
    if not name.startswith('__'): setattr(traceback, name, None)
""",
    "traceback says nothing": """
import traceback
traceback.format_exception = traceback.print_exception = lambda *a, **k: []
""",
    "traceback.TracebackException": "import traceback; traceback.TracebackException.format = None",
    "linecache": "import linecache; linecache.cache = linecache.getline = linecache.checkcache = None",
    "tokenize and re": "import re, tokenize; re.compile = re.sub = tokenize.open = None",
    "io": "import io; io.StringIO = io.TextIOWrapper = io.BytesIO = io.FileIO = io.open = None",
    "io, deleted": "import io; del io.TextIOWrapper, io.FileIO, io.BufferedWriter",
    "os": "import os\nfor name in ('read', 'write', 'dup2', 'fstat', 'stat', 'scandir', 'open', 'close', 'getpid', '_exit', 'listdir', 'fspath', 'path', 'environ', 'getcwd'): setattr(os, name, None)",
    "time": "import time\nfor name in ('time_ns', 'time', 'monotonic', 'sleep'): setattr(time, name, None)",
    "json": "import json; json.dumps = json.loads = json.JSONEncoder = None; del json.encoder",
    "ast": "import ast; ast.parse = ast.Expr = ast.Expression = ast.Module = None",
    "_ast": "import _ast; _ast.Expr = _ast.Expression = _ast.PyCF_ONLY_AST = None",
    "gc": "import gc; gc.collect = gc.disable = gc.enable = gc.freeze = None; gc.disable",
    "threading": "import threading, _thread; threading.Lock = _thread.get_ident = _thread.allocate_lock = None",
    "warnings": "import warnings; warnings.catch_warnings = warnings.simplefilter = warnings.showwarning = None",
    "warnings are errors": "import warnings; warnings.simplefilter('error')",
    "copyreg and types": "import copyreg, types; copyreg.dispatch_table = types.ModuleType = types.CodeType = None",
    # Built-ins.
    "builtins are None": """
import builtins
for name in ('compile', 'len', 'isinstance', 'open', 'eval', 'exec', 'getattr', 'type', 'dict', 'str',
             'repr', 'list', 'next', 'any', 'vars', 'zip', 'Exception', 'BaseException', 'ValueError',
             'KeyboardInterrupt', 'SyntaxError', 'OSError', 'memoryview', 'super', 'property'):
    setattr(builtins, name, None)
""",
    "builtins are gone": """
import builtins
for name in ('len', 'isinstance', 'compile', 'eval', 'range', 'hasattr', 'Exception', 'RecursionError'):
    delattr(builtins, name)
""",
    "no import": "import builtins; builtins.__import__ = None",
    "import is gone": "import builtins; del builtins.__import__",
    "import raises": "import builtins\ndef no(*a, **k): raise SystemExit\nbuiltins.__import__ = no",
    "no __builtins__": "del __builtins__",
    "__builtins__ is empty": "__builtins__ = {'print': print}",
    # sys.
    "streams are None": "import sys; sys.stdin = sys.stdout = sys.stderr = None",
    "streams are gone": "import sys; del sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__",
    "streams raise": """
import sys
class Stream:
    def __getattr__(self, name): raise ValueError(name)
sys.stdin = sys.stdout = sys.stderr = Stream()
""",
    "streams are closed": "import sys; sys.stdout.close(), sys.stderr.close(), sys.stdin.close()",
    "hooks": "import sys; sys.excepthook = sys.displayhook = sys.unraisablehook = sys.breakpointhook = 1/1",
    "functions of sys": "import sys; sys.settrace = sys.gettrace = sys.setprofile = sys.getrecursionlimit = sys._getframe = None",
    "no recursion": """
import sys
for limit in range(1, 60):
    try: sys.setrecursionlimit(limit)
    except RecursionError: continue
    break
""",
    "no paths": "import sys; sys.path = sys.meta_path = sys.path_hooks = None",
    "finders raise": "import sys\nclass F:\n    def find_spec(self, *a): 1 / 0\nsys.meta_path[:] = [F()]",
    "garbage that raises": "class G:\n    def __del__(self): 1 / 0\nG()",
    "a name of the runtime": "import sys, types; sys.modules['guest'] = types.ModuleType('guest')",
    "its own name": "__name__ = __file__ = __package__ = __spec__ = None",
    "globals are cleared": "def wipe(p=print):\n    g = globals()\n    g.clear()\n    g.update(x=5, say=p)\nwipe()",
}  # fmt: skip
"""What a session survives."""

OF_A_PROCESS = {
    "builtins are cleared": "import builtins; vars(builtins).clear()",
    "descriptors 0, 1 and 2": "import os; os.close(0); os.close(1); os.close(2)",
    "descriptors 1 and 2 go elsewhere": "import os\nfor fd in (1, 2): os.dup2(os.open('/dev/null', 1), fd)",
    "low descriptors": "import os; os.closerange(0, 900)",
    "signals": """
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.set_wakeup_fd(-1)
""",
    "signals are blocked": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "functions of signal": "import signal, _signal; _signal.signal = signal.signal = _signal.SIGINT = None",
    "a folder that is gone": "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    "resource": "import resource; resource.getrlimit = resource.setrlimit = resource.getpagesize = None",
    "no files": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
    "no file may grow": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "no processes": "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
    "select": "import select; select.poll = select.POLLIN = None",
    "a thread that goes on": "import threading, time; threading.Thread(target=time.sleep, args=(5,), daemon=True).start()",
    "a fork that goes on": "import os, time\nif os.fork() == 0:\n    time.sleep(2)\n    os._exit(0)",
}  # fmt: skip
"""What a session of a process survives, too."""

ENDED = {
    "an audit hook": "import sys\ndef hook(event, args):\n    if event == 'compile': 1 / 0\nsys.addaudithook(hook)",
    "an audit hook of exec": "import sys\ndef hook(event, args):\n    if event == 'exec': 1 / 0\nsys.addaudithook(hook)",
    "the runtime's globals": "display.__func__.__globals__.clear()",
    "the runtime's code": """
import gc, types
for thing in gc.get_objects():
    if isinstance(thing, types.FunctionType) and thing.__module__ and thing.__module__.startswith('guest.repl'):
        try: thing.__code__ = (lambda *a, **k: {}).__code__
        except ValueError: pass
""",
    "all descriptors": "import os; os.closerange(0, 1 << 16)",
    "a pipe over every descriptor": "import os\nr, w = os.pipe()\nfor fd in range(3, 1100):\n    if fd not in (r, w): os.dup2(r, fd)",
    "no memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20)); resource.setrlimit(resource.RLIMIT_DATA, (1 << 12, 1 << 12))",
    "an alarm that kills": "import signal, time; signal.signal(signal.SIGALRM, signal.SIG_DFL); signal.setitimer(signal.ITIMER_REAL, 0.05)",
    "no utf-8": "import codecs\ncodecs.lookup('utf-8').incrementalencoder = None",
}  # fmt: skip
"""What may end a session, which its next result says."""


@pytest.fixture
def box(open_box):
    """A sandbox of its own, with state that has to last."""
    box = open_box(timeout_ms=5_000)
    assert box.execute("x, say = 5, print").success
    return box


@pytest.mark.spec("R1.9")
@pytest.mark.parametrize("code", CHANGED.values(), ids=CHANGED)
def test_a_session_survives_what_a_cell_does_to_its_interpreter(box, code):
    box.execute(code)
    assert_works(box)


@pytest.mark.needs(Capability.SUBPROCESS)
@pytest.mark.parametrize("code", OF_A_PROCESS.values(), ids=OF_A_PROCESS)
def test_a_session_survives_what_a_cell_does_to_its_process(box, code):
    box.execute(code)
    assert_works(box)


@pytest.mark.needs(Capability.SUBPROCESS)
@pytest.mark.parametrize("code", ENDED.values(), ids=ENDED)
def test_a_session_that_cannot_go_on_says_so(box, code):
    results = [box.execute(code, timeout_ms=1_500), *run_all(box)]
    if not any(one.state_lost for one in results):
        check(results[1:])
    assert box.execute("6 * 7").value == 42


def test_a_tracer_sees_cells_and_never_the_runtime(box):
    seen = "def tracer(frame, *_): names.add(frame.f_code.co_filename)"
    box.execute(f"import sys\nnames = set()\n{seen}\nsys.settrace(tracer)")
    box.execute("sys.settrace(None)")
    assert {name[:6] for name in box.get_variable("names")} == {"<cell "}
    box.execute("sys.setprofile(lambda *_: 1 / 0)")
    box.execute("sys.settrace(lambda *_: 1 / 0)")
    assert box.execute("x").error_type == "ZeroDivisionError"  # the tracer's
    assert_works(box)


@pytest.mark.needs(Capability.SUBPROCESS)
def test_a_signal_between_cells_does_not_end_the_session(box):
    box.execute(
        "import signal\nfired = []\n"
        "def late(*_):\n    fired.append(1)\n    raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, late)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)"
    )
    while not (result := box.execute("len(fired)")).value:
        assert not result.state_lost
    assert_works(box)


@pytest.mark.needs(Capability.SHELL)
def test_a_command_has_no_signals_blocked_where_cells_handle_some(box):
    blocked = "grep SigBlk /proc/self/status"
    before = box.shell(blocked).output
    box.execute("import signal; signal.signal(signal.SIGALRM, print)")
    assert box.shell(blocked).output == before
    assert box.execute("signal.pthread_sigmask(signal.SIG_BLOCK, ())").value == set()


def run_all(box):
    """Run cells that show whether a session works."""
    cells = ("y = x + 1\ny", "say('out')", "y = 1\ny / 0", "def (", "while y:\n    y = 0", "y")
    return [box.execute(one, timeout_ms=1_500) for one in cells]


def assert_works(box):
    """Values, output, errors with their lines and state are as in any session."""
    check(run_all(box))


def check(results):
    value, printed, error, syntax, loop, last = results
    assert not [one for one in results if one.state_lost], results
    assert (value.value, printed.stdout, last.value) == (6, "out\n", 0), results
    assert (error.error_type, syntax.error_type, loop.error) == (
        "ZeroDivisionError", "SyntaxError", None,
    )  # fmt: skip
    assert "Traceback (most recent call last):\n" in error.stderr
    assert "line 2, in <module>\n    y / 0\n" in error.stderr
    assert error.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "invalid syntax" in syntax.stderr

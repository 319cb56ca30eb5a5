"""Ways out of Pyodide that have worked elsewhere: JavaScript, its modules, its functions."""

from __future__ import annotations

import pytest
from sharing import shared_boxes

import atoll
from atoll.policy import Mount


@pytest.fixture(scope="module")
def box():
    with shared_boxes.keep("pyodide") as box:
        yield box


NO_BRIDGE = {
    "js": "import js",
    "js by the importer": "import importlib; importlib.import_module('js')",
    "process": "from js import process; process.env.PATH",
    "pyodide_js": "import pyodide_js",
    "its api": "from pyodide_js import _api",
    "its module": "import pyodide_js; pyodide_js._module.FS",
    "NODEFS": "import pyodide_js as p; p.FS.mount(p.FS.filesystems.NODEFS, {'root': '/'}, '/mnt')",
    "native folder": "import pyodide_js; pyodide_js.mountNativeFS('/mnt', None)",
    "fetch": "import js; js.fetch('http://127.0.0.1/')",
    "pyfetch": "from pyodide.http import pyfetch; pyfetch('http://127.0.0.1/').send(None)",
    "postMessage": "import js; js.postMessage('{}')",
    "Worker": "import js; js.Worker.new('data:text/javascript,')",
    "Deno": "import js; js.Deno.readTextFileSync('/etc/passwd')",
    "eval": "import js; js.eval('1')",
    "run_js": "from pyodide.code import run_js; run_js('1')",
    "private eval": "from _pyodide._base import eval_code; eval_code('import js', {})",
    "register again": "from pyodide.ffi import register_js_module as r; r('x', {}); import x",
}


@pytest.mark.parametrize("code", NO_BRIDGE.values(), ids=NO_BRIDGE)
def test_no_module_leads_to_javascript(box, code):
    result = box.execute(code)
    assert not result.success
    assert not result.state_lost
    assert result.error_type in (
        "ModuleNotFoundError",
        "ImportError",
        "AttributeError",
        "TypeError",
        "NameError",
    )


CONSTRUCTORS = {
    "list": "to_js([1]).constructor.constructor",
    "map": "to_js({}).constructor.constructor",
    "error": "error().constructor.constructor",
    "bytes": "to_js(b'x').constructor.constructor",
}


@pytest.mark.parametrize("path", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_a_value_in_javascript_is_no_way_to_run_code_there(box, path):
    box.execute(
        "from pyodide.ffi import to_js, JsException\n"
        "def error():\n"
        "    try: to_js([1]).constructor(-1)\n"
        "    except JsException as exc: return exc.js_error if hasattr(exc, 'js_error') else exc\n"
        "    return to_js([])\n"
    )
    result = box.execute(f"{path}('return globalThis')()")
    assert not result.success
    assert "Code generation from strings disallowed" in result.error or result.error_type in (
        "AttributeError",
        "TypeError",
    ), result.error


SEARCH = """
import gc, sys
from pyodide.ffi import JsProxy
seen, found, left = set(), [], [*gc.get_objects(), *sys.modules.values()]
while left:
    one = left.pop()
    if id(one) not in seen:
        seen.add(id(one))
        found += [one] if isinstance(one, JsProxy) else []
        left += gc.get_referents(one)
[sorted(proxy.object_keys()) for proxy in found]
"""


def test_nothing_of_javascript_is_left_but_the_port(box):
    """However deep one looks. Its functions have no constructor, so they lead nowhere."""
    result = box.execute(SEARCH)
    assert result.value == [["call", "emit", "put", "sleep", "take", "text"]], result.error
    closed = box.execute("[hasattr(f, 'constructor') for f in (*found, *found[0].object_values())]")
    assert closed.value == [False] * 7


def test_what_pyodide_registers_modules_with_has_forgotten_its_own(box):
    result = box.execute(
        "from pyodide.ffi import register_js_module\n"
        "register_js_module.__self__.jsproxies['pyodide_js']._module"
    )
    assert result.error_type == "KeyError"


NATIVE = {
    "system": "import os; assert os.system('id') == 0",
    "fork": "import os; os.fork()",
    "exec": "import os; os.execv('/bin/sh', ['sh'])",
    "subprocess": "import subprocess; subprocess.run(['id'])",
    "socket": "import socket; socket.create_connection(('127.0.0.1', 22), 1)",
    "dlopen": "import ctypes; ctypes.CDLL('libc.so.6')",
    "host file": "open('/etc/shadow')",
    "proc": "open('/proc/1/environ')",
}


@pytest.mark.parametrize("code", NATIVE.values(), ids=NATIVE)
def test_nothing_of_the_host_is_there(box, code):
    result = box.execute(code)
    assert not result.success


@pytest.mark.parametrize("code", ["import os; os.abort()", "import ctypes; ctypes.string_at(-99)"])
def test_a_trap_is_a_crash_and_the_next_cell_works(code):
    with atoll.create_sandbox(backend="pyodide") as box:
        result = box.execute(code)
        assert (result.kind, result.exit_code, result.state_lost) == ("crashed", 134, True)
        assert box.execute("6 * 7").value == 42


FILES = {
    "outside of the usual folders": "f = open('/outside', 'wb', buffering=0)",
    "without a name": "f = open('/tmp/x', 'wb', buffering=0); os.unlink('/tmp/x'); kept.append(f)",
    "beside the library": "f = open('/lib/x', 'wb', buffering=0)",
}


@pytest.mark.parametrize("place", FILES.values(), ids=FILES)
def test_every_file_counts_wherever_it_is(place):
    policy = atoll.ExecutionPolicy(disk_bytes=8 << 20)
    code = (
        "import errno, os\nkept, written, error = [], 0, None\n"
        "try:\n"
        f"  for n in range(4):\n    {place}\n"
        "    for _ in range(6): written += f.write(bytes(1 << 20))\n"
        "    for _ in range(6 * (not kept)): written += f.write(bytes(1 << 20))\n"
        "except OSError as exc: error = exc.errno == errno.ENOSPC\n"
        "error, written >> 20"
    )
    with atoll.create_sandbox(backend="pyodide", policy=policy) as box:
        assert box.execute(code).value == (True, 8)


@pytest.mark.long
def test_running_a_script_through_c_ends_the_guest_and_nothing_else():
    with atoll.create_sandbox(backend="pyodide") as box:
        result = box.execute("import ctypes; ctypes.pythonapi.emscripten_run_script(b'1')")
        assert (result.success, result.state_lost) == (False, True)
        assert box.execute("6 * 7").value == 42


def test_the_environment_is_the_policys_alone(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    policy = atoll.ExecutionPolicy(env={"GIVEN": "yes"})
    with atoll.create_sandbox(backend="pyodide", policy=policy) as box:
        names = box.execute("import os; dict(os.environ)").value
    assert names["GIVEN"] == "yes"
    assert "SECRET_OF_THE_HOST" not in names


@pytest.mark.long
def test_two_sandboxes_throw_other_dice():
    code = "import random, os; random.random(), os.urandom(8)"
    seen = []
    for _ in range(2):
        with atoll.create_sandbox(backend="pyodide") as box:
            seen.append(box.execute(code).value)
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_what_the_host_cannot_give_is_refused(tmp_path):
    with pytest.raises(atoll.UnsupportedError, match="cannot show folders of the host"):
        atoll.create_sandbox(backend="pyodide", workspace=tmp_path)
    with pytest.raises(atoll.UnsupportedError, match="interpreter"):
        atoll.create_sandbox(backend="pyodide", python="python3")
    mount = Mount(source=tmp_path, target="/data")
    with pytest.raises(atoll.UnsupportedError, match="cannot show folders of the host"):
        atoll.create_sandbox(backend="pyodide", policy=atoll.ExecutionPolicy(mounts=(mount,)))

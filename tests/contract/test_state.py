"""Saved states: what survives, what is named as lost, and what no state can do to the host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import pytest

import atoll
from atoll import Capability

pytestmark = pytest.mark.needs(Capability.SAVE)

SPIN = "while True: pass"


@pytest.fixture
def again(request, open_box):
    """Runs cells, saves, and opens a new session of what was saved."""

    def save_and_open(code, **options):
        box = open_box(**options) if options else request.getfixturevalue("box")
        result = box.execute(code)
        assert result.success, result
        return open_box(state=box.save(), **options)

    return save_and_open


def refused_where_there_are_descriptors(box):
    """A guest that is a process has the pipe's descriptor; one in WebAssembly has none to take."""
    if Capability.SUBPROCESS in box.capabilities:
        return pytest.raises(atoll.StateError)
    return contextlib.suppress(atoll.StateError)  # it may have closed its own folder


def left_out(box):
    return dict(atoll.describe_state(box.save()).left_out)


@pytest.mark.spec("R2.5", "R2.6")
@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("x = [1, {'k': (2, 3.5)}, b'b', None, {4}]", "x == [1, {'k': (2, 3.5)}, b'b', None, {4}]"),
        ("import math as m, os.path", "m.floor(2.5) == 2 and os.path.sep == '/'"),
        ("from math import floor", "floor(2.5) == 2"),
        ("f = lambda v: v * v", "f(3) == 9"),
        ("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)", "f(10) == 55"),
        ("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)", "even(8) and not odd(8)"),
        ("def make():\n n = [0]\n def step(): n[0] += 1; return n[0]\n return step\nstep = make(); step()", "step() == 2"),
        ("class A:\n v = 1\n def m(self): return self.v\nclass B(A):\n def m(self): return super().m() + 1\nb = B()", "b.m() == 2 and isinstance(b, A) and type(b) is B"),
        ("import dataclasses\n@dataclasses.dataclass\nclass P:\n x: int = 1\np = P(2)", "p == P(2) and dataclasses.replace(p, x=3).x == 3"),
        ("import enum\nclass E(enum.Enum):\n A = 1\ne = E.A", "e is E.A and E(1) is e"),
        ("from collections import namedtuple\nN = namedtuple('N', 'a b')\nn = N(1, 2)", "n == N(1, 2) and n.b == 2"),
        ("a = []; b = [a, a]; a.append(b)", "b[0] is a and a[0] is b"),
        ("class E(Exception):\n def __init__(self, a, b): super().__init__('m'); self.b = b\ne = E(1, 2)", "str(e) == 'm' and e.b == 2"),
        ("known = {}\nclass Base:\n def __init_subclass__(cls): known[cls.__name__] = cls\nclass Child(Base): pass", "known == {'Child': Child}"),
        ("ask, short, Failed = llm_query, chunk_text, FailedQuery", "ask is llm_query and short is chunk_text and Failed is FailedQuery"),
        ("import io\nbuffer = io.BytesIO(b'abc'); buffer.seek(1)", "buffer.read() == b'bc'"),
    ],
)  # fmt: skip
def test_what_a_session_holds_survives(again, code, check):
    result = again(code).execute(check)
    assert result.value is True, result


@pytest.mark.spec("R2.5")
@pytest.mark.parametrize(
    ("module", "code", "check"),
    [
        ("numpy", "import numpy as np\na = np.arange(300_000); b = a[::2]; c = a.reshape(300, 1000)", "int(a.sum()) == 44999850000 and len(b) == 150_000 and a.flags.writeable and c.shape == (300, 1000)"),
        ("numpy", "import numpy as np\nr = np.random.default_rng(1).bytes(1 << 20)\nn = np.frombuffer(r, dtype='u1').copy()", "n.tobytes() == r"),
        ("pandas", "import pandas as pd\nd = pd.DataFrame({'a': range(50_000), 'b': ['x', 'y'] * 25_000})\ng = d.groupby('b').a.sum()", "d.shape == (50_000, 2) and int(g['y']) == 625_000_000 and d.assign(c=1).c.sum() == 50_000"),
    ],
)  # fmt: skip
def test_arrays_and_frames_survive(again, box, module, code, check):
    if not box.execute(f"import {module}").success:
        pytest.skip(f"the guest's Python has no {module}")
    result = again(code).execute(f"bool({check})")
    assert result.value is True, result


@pytest.mark.spec("R2.6")
def test_a_restored_function_sees_what_later_cells_define(again):
    box = again("k = 1\ndef f(): return k + helper()\ndef helper(): return 10")
    assert box.execute("f()").value == 11
    assert box.execute("k = 2\ndef helper(): return 20\nf()").value == 22
    assert box.execute("f.__globals__ is globals()").value is True


def test_a_state_is_restored_again_and_again(open_box):
    box = open_box()
    box.execute("class C: n = 0\nc = C()\ndef bump(): c.n += 1; return c.n")
    for turn in range(1, 4):
        assert box.execute("bump(), isinstance(c, C)").value == (turn, True)
        box = open_box(state=box.save())


@pytest.mark.spec("R2.5")
def test_what_cannot_be_kept_is_named_and_costs_nothing_else(open_box):
    box = open_box()
    box.execute(
        "import threading, socket\n"
        "shared = [1]; one = {'s': shared}; two = {'s': shared}\n"
        "generator = (n for n in 'ab'); file = open('f.txt', 'w'); lock = threading.Lock()\n"
        "class Bad:\n def __reduce__(self): raise ValueError('not me')\n"
        "class Leaves:\n def __reduce__(self): raise SystemExit(3)\n"
        "bad = [Bad()]; leaves = Leaves()\n"
        "deep = []\nfor _ in range(100_000): deep = [deep]\n"
        "def uses(): return lock, shared"
    )
    names = left_out(box)
    assert sorted(names) == ["bad", "deep", "file", "generator", "leaves", "lock"]
    assert "not me" in names["bad"]
    assert "open file" in names["file"]
    other = open_box(state=box.save())
    assert other.execute("one['s'] is two['s'] is shared").value is True
    assert other.execute("uses()").error_type == "NameError"
    assert other.execute("lock = None\nuses()").value == (None, [1])


@pytest.mark.spec("R2.5")
def test_private_names_and_what_the_host_gives_stay_out_unless_a_function_needs_them(open_box):
    box = open_box(context="first")
    box.execute("_private = 1\n_used = 2\ndef f(): return _used\n__odd = 3\nimport json")
    assert set(left_out(box)) == {"_private", "__odd"}
    other = open_box(state=box.save(), context="second")
    listed = "sorted(n for n in globals() if not n.endswith('__'))"
    preloaded = set(open_box(context="third").execute(listed).value) - {"context"}
    names = set(other.execute(listed).value) - preloaded
    assert names | {"json"} == {"_used", "context", "f", "json"}
    assert other.execute("context, f()").value == ("second", 2)


def test_a_private_name_that_is_needed_and_cannot_be_kept_is_named(open_box):
    box = open_box()
    box.execute(
        "import threading\n_lock = threading.Lock(); _idle = threading.Lock()\ndef f(): return _lock"
    )
    found = left_out(box)
    assert set(found) == {"_lock", "_idle"}
    assert "pickle" in found["_lock"]
    assert open_box(state=box.save()).execute("f()").error_type == "NameError"


@pytest.mark.needs(Capability.SUBPROCESS)
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("_x = 1", "_x"),
        ("context = 'other'", "context"),
        ("open('/tmp/note', 'w').close()", "/tmp/note"),
        ("open('/home/guest/note', 'w').close()", "/home/guest/note"),
        ("import os; os.environ['A'] = 'b'", "environment A"),
        ("import os; del os.environ['HOME']", "environment HOME"),
        ("import os; os.chdir('/tmp')", "current folder"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(9,)).start()", "threads"),
        ("import subprocess; _p = subprocess.Popen(['sleep', '9']); del _p", "processes"),
    ],
)  # fmt: skip
def test_everything_that_is_left_out_is_named(open_box, code, name):
    box = open_box(context="given")
    assert box.execute(code).success
    assert list(left_out(box)) == [name]


@pytest.mark.needs(Capability.HOST_FOLDER)
def test_a_mount_is_nothing_that_a_session_leaves_behind(open_box, tmp_path):
    mounts = (atoll.Mount(source=tmp_path, target="/tmp/given/data"),)
    box = open_box(policy=atoll.ExecutionPolicy(mounts=mounts))
    assert left_out(box) == {}
    box.execute("open('/tmp/own', 'w').close()")
    assert list(left_out(box)) == ["/tmp/own"]


def test_nothing_is_named_where_nothing_is_left_out(open_box):
    box = open_box(context="given")
    box.execute("import math as _m\nx = 1\ndef f(): return x\nx")
    assert left_out(box) == {}


@pytest.mark.needs(Capability.SAVE, Capability.FILES)
def test_files_and_folders_travel(again):
    box = again(
        "import os\nos.makedirs('a/b/empty'); open('a/data', 'wb').write(bytes(range(256)) * 9000)\n"
        "open('lib.py', 'w').write('def f(): return 7')\nfrom lib import f\n"
        "open('none.txt', 'w').close(); os.symlink('a/data', 'inside')"
    )
    result = box.execute(
        "open('inside', 'rb').read() == bytes(range(256)) * 9000, os.listdir('a/b/empty'), f(),"
        " os.path.getsize('none.txt'), os.readlink('inside')"
    )
    assert result.value == (True, [], 7, 0, "a/data"), result


@pytest.mark.needs(Capability.SAVE, Capability.FILES, Capability.SUBPROCESS)
def test_files_travel_and_links_only_where_they_stay_inside(open_box):
    box = open_box()
    result = box.execute(
        "import os\n"
        "os.makedirs('a/b/empty'); open('a/b/data.bin', 'wb').write(os.urandom(3 << 20))\n"
        "open('run.sh', 'w').write('#!/bin/sh\\necho hi\\n'); os.chmod('run.sh', 0o755)\n"
        "open('lib.py', 'w').write('def f(): return 7')\nfrom lib import f\n"
        "open('empty.txt', 'w').close()\nopen('caf\\u00e9 \\udc80.txt', 'w').write('odd')\n"
        "os.symlink('b/data.bin', 'a/inside'); os.symlink('../..', 'a/up')\n"
        "os.symlink('/etc/passwd', 'absolute'); os.mkfifo('pipe')\n"
        "import hashlib\ndigest = hashlib.sha256(open('a/inside', 'rb').read()).hexdigest()\n"
    )
    assert result.success, result
    names = left_out(box)
    assert sorted(names) == ["file a/up", "file absolute", "file pipe"]
    other = open_box(state=box.save())
    check = (
        "import subprocess\n"
        "(hashlib.sha256(open('a/inside', 'rb').read()).hexdigest() == digest, os.listdir('a/b/empty'),"
        " os.readlink('a/inside'), f(), subprocess.run('./run.sh', capture_output=True).stdout,"
        " os.path.getsize('empty.txt'), sorted(os.listdir('.')))"
    )
    result = other.execute(check)
    expected = ["a", "caf\u00e9 \udc80.txt", "empty.txt", "lib.py", "run.sh"]
    assert result.value == (True, [], "b/data.bin", 7, b"hi\n", 0, expected), result
    assert result.files == (), "what was restored is not news"


@pytest.mark.needs(Capability.SAVE, Capability.HOST_FOLDER)
def test_files_of_a_host_folder_stay_where_they_are(open_box, tmp_path):
    box = open_box(workspace=tmp_path)
    box.execute("open('mine.txt', 'w').write('x' * 10)\nv = 1")
    other = open_box(state=box.save())
    assert other.execute("import os\nv, os.listdir('.')").value == (1, [])


@pytest.mark.spec("R2.7")
@pytest.mark.parametrize("code", ["big = b'x' * 3_000_000", "big = ['%d' % n for n in range(400_000)]", "open('big', 'wb').write(bytes(3_000_000))"])  # fmt: skip
def test_over_the_cap_nothing_is_saved_and_the_error_says_so(open_box, code):
    box = open_box(max_state_bytes=1_000_000)
    box.execute(f"{code}\nsmall = 1")
    with pytest.raises(
        atoll.StateTooLargeError, match=r"larger than 1,000,000 bytes.*it has \d,\d+,\d+ bytes.*big"
    ) as caught:
        box.save()
    assert "max_state_bytes" in str(caught.value)
    assert box.execute("small").value == 1


@pytest.mark.spec("R2.7")
def test_the_cap_counts_what_is_not_compressed_on_both_ways(open_box):
    box = open_box(max_state_bytes=10_000_000)
    box.execute("zeros = bytes(5_000_000)")
    blob = box.save()
    assert len(blob) < 100_000
    with pytest.raises(atoll.StateError, match="max_state_bytes is 1,000,000"):
        open_box(state=blob, max_state_bytes=1_000_000)


@pytest.mark.spec("R2.7")
def test_the_cap_comes_from_the_environment(open_box, monkeypatch):
    monkeypatch.setenv("STATE_MAX_SIZE_MB", "1")
    box = open_box()
    box.execute("big = bytes(2 << 20)")
    with pytest.raises(atoll.StateError, match="larger than 1,048,576 bytes"):
        box.save()


def test_saving_that_hangs_is_stopped_and_the_session_goes_on(open_box):
    box = open_box(timeout_ms=1_000)
    box.execute(f"kept = 1\nclass Slow:\n def __reduce__(self):\n  {SPIN}\ns = Slow()")
    started = time.monotonic()
    with pytest.raises(atoll.StateError, match="took longer than 1000 ms"):
        box.save()
    assert time.monotonic() - started < 40
    assert box.execute("kept").value == 1
    box.execute("del s")
    assert open_box(state=box.save()).execute("kept").value == 1


def test_saving_that_will_not_be_stopped_loses_the_session_and_says_so(open_box):
    box = open_box(timeout_ms=3_000)
    box.execute(
        "kept = 1\nclass Stubborn:\n def __reduce__(self):\n  n = 0\n  while True:\n   try:\n"
        "    for _ in iter(int, 1): n += 1\n   except BaseException: pass\ns = Stubborn()"
    )
    with pytest.raises(atoll.StateError, match="ended during save"):
        box.save()
    with pytest.raises(atoll.StateError, match="nothing to save"):
        box.save()
    result = box.execute("'kept' in globals()")
    assert (result.value, result.state_lost) == (False, True)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (SPIN, "took longer than 1000 ms"),
        ("1 / 0", "could not restore: .*ZeroDivisionError"),
        ("__import__('os')._exit(3)", "ended during restore"),
        pytest.param(
            "__import__('os').kill(__import__('os').getpid(), 9)",
            "ended during restore",
            marks=pytest.mark.needs(Capability.SUBPROCESS),
        ),
        ("__import__('sys').exit(0)", "could not restore: SystemExit"),
    ],
)
def test_a_state_that_will_not_load_is_refused_in_words(open_box, code, message):
    box = open_box()
    box.execute(f"class Late:\n def __reduce__(self): return exec, ({code!r},)\nlate = Late()")
    options = {"timeout_ms": 1_000} if code == SPIN else {}
    with pytest.raises(atoll.StateError, match=message):
        open_box(state=box.save(), **options)


def test_a_state_loads_nothing_on_the_host(open_box, tmp_path):
    box = open_box()
    box.execute(
        'class Mine:\n def __reduce__(self): return exec, ("""import builtins, os\nbuiltins.loaded = True\n'
        f'try: os.makedirs(\'{tmp_path}/there\')\nexcept OSError: pass""",)\nm = Mine()'
    )
    blob = box.save()
    atoll.describe_state(blob)
    assert list(tmp_path.iterdir()) == []
    assert open_box(state=blob).execute("loaded").value is True, "it is loaded, but in the sandbox"
    assert list(tmp_path.iterdir()) == []


def test_a_bomb_in_a_state_is_met_by_the_cap(open_box):
    """The guest lies about the size of what it packed; the next one finds out before it unpacks."""
    box = open_box(max_state_bytes=5_000_000)
    box.execute(
        "import sys, zlib\n"
        "try:\n import lz4.frame as packer\nexcept ImportError:\n packer = zlib\n"
        "real = packer.compress\n"
        "packer.compress = lambda data, *a: real(bytes(len(data)) * 100, *a) if len(data) > 100_000 else real(data, *a)\n"
        "big = b'a' * 1_000_000"
    )
    with pytest.raises(atoll.StateError, match=r"damaged|could not restore"):
        open_box(state=box.save())


def test_guest_code_that_takes_the_descriptor_does_not_hold_up_the_host(open_box):
    box = open_box(timeout_ms=2_000)
    box.execute(
        "import os\nclass Thief:\n def __reduce__(self):\n"
        "  for fd in range(3, 4096):\n   try:\n    os.close(fd)\n   except OSError: pass\n"
        "  return int, ()\nt = Thief()"
    )
    with refused_where_there_are_descriptors(box):
        assert len(box.save()) < 10_000
    assert box.execute("6 * 7").value == 42


def test_a_guest_that_floods_the_pipe_is_not_kept(open_box):
    box = open_box(max_state_bytes=100_000, timeout_ms=3_000)
    box.execute(
        "import os, stat\nclass Flood:\n def __reduce__(self):\n"
        "  for fd in range(3, 4096):\n   try:\n"
        "    if stat.S_ISFIFO(os.fstat(fd).st_mode):\n"
        "     os.set_blocking(fd, False)\n"
        "     for _ in range(500): os.write(fd, bytes(65536))\n"
        "   except OSError: pass\n"
        "  return int, ()\nf = Flood()"
    )
    with refused_where_there_are_descriptors(box):
        assert len(box.save()) < 100_000
    assert box.execute("6 * 7").value == 42


def test_a_state_is_for_the_python_that_made_it(open_box, monkeypatch):
    box = open_box()
    blob = box.save()
    head, line, rest = blob.split(b"\n", 2)
    version = box.execute("import sys; sys.version_info[:2]").value
    assert b'"python": "%d.%d"' % tuple(version) in line
    forged = b"\n".join((head, line.replace(b'"3.', b'"2.', 1), rest))
    with pytest.raises(atoll.StateError, match="has been changed"):
        open_box(state=forged)


@pytest.mark.spec("R2.6")
def test_a_state_is_good_in_another_process(box, backend, tmp_path):
    box.execute("def f(): return v * 2\nv = 21")
    (tmp_path / "state").write_bytes(box.save())
    code = (
        f"import atoll; blob = open({str(tmp_path / 'state')!r}, 'rb').read()\n"
        f"with atoll.create_sandbox(backend={backend!r}, state=blob) as box: print(box.execute('f()').value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ
    )
    assert done.stdout.strip() == "42", done.stderr


def test_cloudpickle_of_the_host_does_not_show_in_the_guest(again):
    box = again(
        "import sys\nv = lambda: 1\nbefore = (list(sys.path), sorted(m for m in sys.modules if 'pickle' in m))"
    )
    names = "sorted(m for m in sys.modules if 'cloudpickle' in m and m not in before[1])"
    assert box.execute(f"v(), {names}, sys.path == before[0]").value == (1, [], True)
    box.save()
    assert box.execute(names).value == []


def test_a_guest_that_was_lost_starts_again_from_its_state(open_box):
    first = open_box()
    first.execute("v = 1")
    box = open_box(state=first.save())
    assert box.execute("v = 2\nimport os\nos._exit(1)").state_lost
    assert box.execute("v").value == 1


async def test_the_async_face_saves_too(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        await box.execute("v = 3")
        blob = await box.save()
    async with atoll.aio.create_sandbox(backend=backend, state=blob) as box:
        assert await box.get_variable("v") == 3

"""PythonSandbox as its users asked for it: fuel, memory, files, metrics, logs, its binary."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import time
from pathlib import Path

import pytest

import atoll
from atoll import ExecutionPolicy, Isolation, PythonSandbox, run_untrusted_python
from atoll.backends.wasm import build
from atoll.backends.wasm import sandbox as sandbox_module
from atoll.log import LogEvent, SandboxLogger
from atoll.policy import Mount

MIB = 1 << 20
SMALL_FUEL = ExecutionPolicy(fuel_budget=100_000)


@pytest.fixture
def box():
    with atoll.create_sandbox(backend="wasm") as one:
        yield one


@pytest.fixture
def events():
    return []


@pytest.fixture
def logger(events):
    return SandboxLogger(events.append)


@pytest.fixture(params=["blocking", "async"])
def make(request):
    """Return what makes a PythonSandbox, whose methods block in either case."""
    made = []

    def one(*args, **options):
        if request.param == "blocking":
            made.append(PythonSandbox(*args, **options))
        else:
            made.append(atoll.SyncSandbox(atoll.aio.PythonSandbox(*args, **options)))
        return made[-1]

    yield one
    for box in made:
        box.destroy()


@pytest.mark.spec("R1.1", "R1.15")
@pytest.mark.parametrize("kind", [PythonSandbox, atoll.aio.PythonSandbox])
def test_it_is_a_sandbox_with_policy_workspace_and_logger(tmp_path, logger, kind):
    policy = ExecutionPolicy(memory_bytes=64 * MIB)
    config = atoll.SandboxConfig(backend="wasm", policy=policy, workspace=tmp_path, logger=logger)
    for sandbox in (
        kind(policy, tmp_path, logger),
        kind(policy=policy, workspace=str(tmp_path), logger=logger),
        kind(config),
        kind(config=config),
    ):
        assert isinstance(sandbox, atoll.BaseSandbox)
        assert (sandbox.policy, sandbox.workspace, sandbox.logger) == (policy, tmp_path, logger)
    assert kind().policy == ExecutionPolicy()
    assert isinstance(kind().logger, SandboxLogger)


@pytest.mark.spec("R1.15")
def test_it_takes_policy_workspace_and_logger_and_starts_by_itself(tmp_path, logger, events):
    sandbox = PythonSandbox({"fuel_budget": 10**9}, tmp_path, logger)
    assert sandbox.validate_code("x = 1 + 2")
    assert not sandbox.validate_code("x = 1 +")
    result = sandbox.execute("print('Hello'); open('/app/out.txt', 'w').write('data')")
    assert (result.stdout, result.files_created) == ("Hello\n", ("out.txt",))
    assert result.fuel_consumed > 0
    assert result.workspace_path == str(tmp_path)
    assert (tmp_path / "out.txt").read_text() == "data"
    names = [one.name for one in events]
    assert (names[0], names[-1]) == ("execution_start", "execution_complete")
    sandbox.destroy()
    with pytest.raises(atoll.SandboxClosedError, match="the sandbox is closed"):
        sandbox.execute("1")


@pytest.mark.spec("R1.15")
async def test_the_async_twin_starts_once_for_calls_at_the_same_time():
    async with atoll.aio.PythonSandbox() as sandbox:
        await asyncio.gather(*(sandbox.execute(f"x{n} = {n}") for n in range(3)))
        assert (await sandbox.execute("x0, x1, x2")).value == (0, 1, 2)
        assert await sandbox.validate_code("x = 1 + 2")


@pytest.mark.spec("R1.15")
def test_any_call_starts_it(make):
    box = make()
    box.set_variable("x", 6)
    assert box.execute("x * 7").value == 42


@pytest.mark.spec("R0.2", "R1.15")
def test_one_that_nobody_destroys_ends_as_garbage():
    assert PythonSandbox().execute("1").value == 1  # the zygote's descriptors stay
    box = PythonSandbox()
    inner = box.inner
    box.execute("1")
    del box
    gc.collect()
    end = time.monotonic() + 30
    while not inner._destroyed and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(atoll.SandboxClosedError):
        atoll.SyncSandbox(inner).execute("1")


@pytest.mark.spec("R1.3", "R1.15")
def test_a_cell_says_whether_it_has_the_packages(tmp_path, make):
    (tmp_path / "site-packages" / "mine").mkdir(parents=True)
    (tmp_path / "site-packages" / "mine" / "__init__.py").write_text("answer = 42\n")
    path = "import sys; [one for one in sys.path if one.endswith('site-packages')]"
    sandbox = make(workspace=tmp_path)
    assert sandbox.execute(path, inject_setup=False).value == []
    failed = sandbox.execute("import mine", inject_setup=False)
    assert failed.error_type == "ModuleNotFoundError"
    assert sandbox.execute(path).value == ["/app/site-packages"]
    assert sandbox.execute("import mine; mine.answer", inject_setup=True).value == 42
    assert sandbox.execute("x = 1; mine.answer", inject_setup=False).value == 42
    sandbox = make(atoll.SandboxConfig(backend="wasm", inject_setup=False))
    assert sandbox.execute(path).value == []
    assert sandbox.execute(path, inject_setup=True).value == ["/app/site-packages"]


@pytest.mark.spec("R1.15")
def test_in_another_backend_inject_setup_is_refused():
    with atoll.create_sandbox(backend="native") as box:
        with pytest.raises(
            atoll.ConfigError, match="an option of the backend 'wasm', not of 'native'"
        ):
            box.execute("1", inject_setup=True)
        assert box.execute("1").value == 1


@pytest.mark.spec("R1.5")
def test_every_execution_passes_run_untrusted_python(monkeypatch):
    seen = []
    inner = sandbox_module.run_untrusted_python

    async def spy(code, **options):
        seen.append(code)
        return await inner(code, **options)

    monkeypatch.setattr(sandbox_module, "run_untrusted_python", spy)
    with PythonSandbox() as box, atoll.create_sandbox(backend="wasm") as other:
        assert (box.execute("1").value, other.execute("2").value) == (1, 2)
        assert run_untrusted_python("6 * 7", sandbox=box).value == 42
        assert run_untrusted_python("3").value == 3
        assert seen == ["1", "2", "6 * 7", "3", "3"]  # a fresh sandbox runs its cell by the same
        with pytest.raises(atoll.ConfigError, match="context: options of a new sandbox"):
            run_untrusted_python("1", sandbox=box, context="x")


@pytest.mark.spec("R1.2", "R1.5")
def test_a_one_shot_runs_cpython_and_tells_its_fuel():
    result = run_untrusted_python(
        "import sys; print('Hello', sys.implementation.name, sys.platform)"
    )
    assert result.success
    assert result.stdout == "Hello cpython wasi\n"
    assert result.fuel_consumed > 0
    assert result.isolation is Isolation.VIRTUAL


@pytest.mark.spec("R1.5")
def test_one_shots_share_nothing():
    assert run_untrusted_python("import builtins, json; builtins.left = json.left = 1").success
    result = run_untrusted_python("import json; 'left' in dir(__builtins__), hasattr(json, 'left')")
    assert result.value == (False, False)


@pytest.mark.spec("R1.5")
def test_wasi_is_set_up_in_one_place():
    sources = Path(build.__file__).parent.rglob("*.py")
    assert [one.name for one in sources if "WasiConfig(" in one.read_text()] == ["instance.py"]


@pytest.mark.spec("R1.4")
def test_an_exception_is_a_result(box):
    result = box.execute("raise ValueError('test')")
    assert not result.success
    assert result.stderr.splitlines()[-1] == "ValueError: test"


@pytest.mark.spec("R1.6")
def test_validation_compiles_and_runs_nothing(box):
    assert box.validate_code("x = 1 + 2")
    assert not box.validate_code("x = 1 +")
    assert box.validate_code("import os; open('made', 'w'); ran = True")
    assert box.execute("import os; (os.path.exists('made'), 'ran' in globals())").value == (
        False,
        False,
    )


@pytest.mark.spec("R1.7")
def test_files_are_listed_relative_to_the_workspace(tmp_path):
    (tmp_path / "input.txt").write_text("some")
    (tmp_path / "user_code.py").write_text("old")
    (tmp_path / "elsewhere").symlink_to("/etc")
    code = (
        "import os\nos.makedirs('/app/subdir'); open('/app/subdir/file.txt', 'w').write('x')\n"
        "open('/app/output.txt', 'w').write('data'); open('/app/input.txt', 'a').write('more')\n"
        "open('/app/user_code.py', 'w').write('new'); os.symlink('output.txt', 'link')"
    )
    result = run_untrusted_python(code, workspace=tmp_path)
    assert result.success, result.stderr
    assert result.files_created == ("output.txt", "subdir/file.txt")
    assert result.files_modified == ("input.txt",)
    assert result.workspace_path == str(tmp_path)
    assert (tmp_path / "input.txt").read_text() == "somemore"


@pytest.mark.spec("R1.8")
def test_metrics(box):
    result = box.execute("held = b'x' * 10_000_000\nimport time; time.sleep(0.1)")
    assert result.duration_ms >= 100
    assert result.memory_used_bytes >= 10_000_000
    assert 0 < result.cpu_ms < result.duration_ms
    few, many = (box.execute(f"for _ in range({n}): pass").fuel_consumed for n in (10, 100_000))
    assert 0 < few < many


@pytest.mark.spec("R1.9")
@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ", "../etc/passwd", "/"])
def test_nothing_of_the_host_is_visible(box, path):
    for action in (f"open({path!r}).read()", f"import os; os.listdir({path!r})"):
        result = box.execute(action)
        assert result.error_type in ("FileNotFoundError", "PermissionError", "NotADirectoryError")


@pytest.mark.spec("R1.10")
@pytest.mark.parametrize("budget", [100_000, 10_000_000])
def test_out_of_fuel_stops_at_exactly_the_budget(budget):
    result = run_untrusted_python("while True: pass", policy=ExecutionPolicy(fuel_budget=budget))
    assert (result.kind, result.success, result.fuel_consumed) == ("fuel", False, budget)
    assert "OutOfFuel" in result.stderr
    assert f"fuel_budget={budget * 10:_}" in result.error


@pytest.mark.spec("R1.10")
def test_fuel_is_for_each_cell_and_none_is_no_limit():
    with atoll.create_sandbox(
        backend="wasm", policy=ExecutionPolicy(fuel_budget=500_000_000)
    ) as box:
        burn = "for _ in range(100_000): pass"
        assert all(box.execute(burn).success for _ in range(8))
        result = box.execute("while True: pass")
        assert (result.kind, result.state_lost) == ("fuel", True)
        assert box.execute("6 * 7").value == 42


@pytest.mark.spec("R1.10")
def test_without_a_budget_fuel_is_counted_and_time_is_the_limit():
    with atoll.create_sandbox(backend="wasm") as box:
        result = box.execute("while True: pass", timeout_ms=1500)
        assert (result.kind, result.state_lost) == ("timeout", False)
        assert result.fuel_consumed > 0


@pytest.mark.spec("R1.11")
def test_too_much_memory_is_a_memory_error_that_says_what_would_do():
    result = run_untrusted_python(
        "x = 'a' * 100_000_000", policy=ExecutionPolicy(memory_bytes=64_000_000)
    )
    assert (result.kind, result.error_type) == ("error", "MemoryError")
    assert "memory_bytes=" in result.stderr
    assert run_untrusted_python(
        "x = 'a' * 30_000_000", policy=ExecutionPolicy(memory_bytes=64_000_000)
    ).success


def test_a_missing_package_says_how_to_get_it(box):
    result = box.execute("import numpy")
    assert result.error == "ModuleNotFoundError: No module named 'numpy'"
    assert "`atoll wasm install numpy`" in result.stderr
    assert "backends native and daemon" in result.stderr


def test_advice_is_heard_by_who_listens_to_stderr():
    heard: list[str] = []
    with atoll.create_sandbox(backend="wasm", on_stderr=heard.append) as box:
        result = box.execute("import numpy")
        assert heard[-1] == result.stderr.splitlines()[-1]
        assert "`atoll wasm install numpy`" in heard[-1]


@pytest.mark.spec("R1.12")
def test_output_is_capped_in_bytes():
    policy = ExecutionPolicy(stdout_max_bytes=1000, stderr_max_bytes=500)
    code = "import sys\nprint('x' * 10_000)\nprint('y' * 10_000, file=sys.stderr)"
    result = run_untrusted_python(code, policy=policy)
    assert len(result.stdout.encode()) <= 1000
    assert len(result.stderr.encode()) <= 500
    assert result.truncated
    assert "output cut" in result.stdout


@pytest.mark.spec("R1.13")
def test_events(events, logger):
    run_untrusted_python("print(1)", logger=logger)
    start, complete = (
        one for one in events if one.name.startswith("execution_") and one.level > 10
    )
    assert (start.name, start.fields["runtime"]) == ("execution_start", "python")
    assert start.fields["policy"]["fuel_budget"] is None
    assert complete.fields["success"] is True
    assert complete.fields["fuel_consumed"] > 0
    assert complete.fields["duration_ms"] > 0


@pytest.mark.spec("R1.13")
def test_running_out_of_fuel_is_a_security_event(events, logger):
    run_untrusted_python("while True: pass", policy=SMALL_FUEL, logger=logger)
    found = [one for one in events if isinstance(one, LogEvent) and one.name == "security"]
    assert [one.fields["type"] for one in found] == ["fuel_exhaustion"]


@pytest.mark.spec("R1.14")
def test_a_missing_binary_says_how_to_get_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="atoll wasm build --output"):
        run_untrusted_python("1", wasm_binary_path=tmp_path / "bin/python.wasm")


@pytest.mark.spec("R1.14")
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (build.MODULE + b"\0" * 100, "a WebAssembly module"),
        (b"#!/bin/sh\n", "not a WebAssembly component"),
        (b"", "not a WebAssembly component"),
        (build.COMPONENT + b"junk", "a component of another kind, or damaged"),
        (build.COMPONENT, "a component of another kind, or damaged"),
    ],
)
def test_a_file_that_is_no_component_of_atolls_is_refused_in_a_sentence(tmp_path, content, kind):
    own = tmp_path / "python.wasm"
    own.write_bytes(content)
    with pytest.raises(atoll.ConfigError) as caught:
        PythonSandbox(wasm_binary_path=own).execute("1")
    assert str(caught.value) == (
        f"{own} is {kind}, and the backend wasm runs only components that Atoll makes (a plain "
        f"WASI python.wasm cannot be used): make one with `atoll wasm build --output {own}`, or "
        f"remove it and leave wasm_binary_path out"
    )


@pytest.mark.spec("R1.14")
def test_a_binary_in_the_folder_bin_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert build.chosen(atoll.SandboxConfig()) is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python.wasm").write_bytes(b"")
    assert build.chosen(atoll.SandboxConfig()) == tmp_path / "bin/python.wasm"
    given = atoll.SandboxConfig(wasm_binary_path="other.wasm")
    assert build.chosen(given) == tmp_path / "other.wasm"
    with pytest.raises(atoll.ConfigError, match=r"bin/python\.wasm is not a WebAssembly component"):
        run_untrusted_python("1")


@pytest.mark.spec("R1.14")
def test_a_binary_of_ones_own_is_compiled_and_used(tmp_path, monkeypatch):
    built = build.find()
    (tmp_path / "bin").mkdir()
    shutil.copyfile(built.folder / "python.wasm", tmp_path / "bin/python.wasm")
    monkeypatch.chdir(tmp_path)
    own = Path("bin/python.wasm")
    place = build._folder(own.absolute())
    shutil.copytree(built.folder, place, dirs_exist_ok=True)  # what a minute of compiling gives
    assert run_untrusted_python("6 * 7", wasm_binary_path=own).value == 42
    assert run_untrusted_python("6 * 7").value == 42
    with PythonSandbox(None, None, None, "bin/python.wasm") as box:
        assert box.execute("6 * 7").value == 42
    shutil.rmtree(place)


def test_a_folder_is_mounted_and_a_file_is_refused(tmp_path):
    (tmp_path / "in.txt").write_text("given")
    tmp_path.chmod(0o755)
    mount = Mount(source=tmp_path, target="/data")
    result = run_untrusted_python(
        "print(open('/data/in.txt').read())\nopen('/data/new', 'w')",
        policy=ExecutionPolicy(mounts=(mount,)),
    )
    assert (result.stdout, result.error_type) == ("given\n", "PermissionError")
    alone = Mount(source=tmp_path / "in.txt", target="/one")
    with pytest.raises(atoll.ConfigError, match="is not a folder"):
        run_untrusted_python("1", policy=ExecutionPolicy(mounts=(alone,)))


def test_only_given_variables_are_in_the_environment(monkeypatch):
    monkeypatch.setenv("A_SECRET", "x")
    result = run_untrusted_python(
        "import os; sorted(os.environ)", policy=ExecutionPolicy(env={"GIVEN": "1"})
    )
    assert result.value == ["GIVEN"]


def test_randomness_is_not_frozen():
    seen = {
        run_untrusted_python("import random, os; random.random(), os.urandom(4)").value
        for _ in range(3)
    }
    assert len(seen) == 3


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio\nasync def f():\n  await asyncio.sleep(0.01)\n  return 7\nasyncio.run(f())",
        "import asyncio\nasync def f(n): return n\nasync def g(): return sum(await asyncio.gather(f(3), f(4)))\nasyncio.run(g())",
    ],
)
def test_asyncio_runs(box, code):
    assert box.execute(code).value == 7


def test_the_standard_library_is_whole(box):
    code = (
        "import zipfile, tarfile, difflib, argparse, configparser, http.client, email.message, xml.etree.ElementTree,"
        " sqlite3, html.parser, unittest.mock, concurrent.futures, tomllib, graphlib, ipaddress, zoneinfo, gzip\n"
        "sqlite3.connect(':memory:').execute('select 6 * 7').fetchone()[0]"
    )
    result = box.execute(code)
    assert result.value == 42, result.stderr


@pytest.mark.parametrize(
    "code",
    [
        "deep = []\nfor _ in range(100_000): deep = [deep]\nrepr(deep)",
        "import json\njson.loads('[' * 100_000)",
        "def f(): return f()\nf()",
        "f = lambda n: sorted([1, 2], key=lambda k: f(n + 1))\nf(0)",
    ],
    ids=["repr", "json", "python", "through C"],
)
def test_deep_recursion_is_an_error_and_state_stays(code):
    with atoll.create_sandbox(backend="wasm", policy=ExecutionPolicy(fuel_budget=None)) as box:
        box.execute("kept = 1")
        assert box.execute(code).error_type == "RecursionError"
        assert box.execute("kept").value == 1


def test_two_loops_one_after_the_other():
    """The workers that wait belong to no loop."""

    async def once() -> int:
        async with atoll.aio.create_sandbox(backend="wasm") as box:
            return (await box.execute("6 * 7")).value

    assert [asyncio.run(once()) for _ in range(2)] == [42, 42]


def test_a_killed_zygote_costs_nothing(box):
    zygotes = [
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit()
        and b"atoll.backends.wasm.worker:prepare" in _command_line(pid)
        and _has_ancestor(int(pid), os.getpid())
    ]
    assert zygotes
    for pid in zygotes:
        os.kill(pid, 9)
    assert run_untrusted_python("6 * 7").value == 42
    assert box.execute("6 * 7").value == 42


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _has_ancestor(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False

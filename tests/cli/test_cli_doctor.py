"""`atoll doctor`: what it tells of the backends, and how it judges attacks."""

import asyncio
import dataclasses
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ordinary_user import SOURCE, USER, run_as_user

from atoll import extras
from atoll.agent.trajectory.terminal_text import Colours
from atoll.backends import registry
from atoll.cli.commands import doctor
from atoll.cli.selfcheck import check
from atoll.cli.selfcheck.check import MARK, AttackReport, AttackResult, Canaries
from atoll.config import SandboxConfig
from atoll.policy import Isolation
from atoll.sandbox.availability import Availability

_ENTRY = "from atoll.cli.main import main\nsys.exit(main())"
BITING = (
    "secret-file", "secret-environment", "other-processes", "inherited-descriptors", "privileges",
    "loopback", "abstract-socket", "way-out-by-link", "write-outside",
)  # fmt: skip


def _as_root(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_tells_of_every_backend(atoll):
    code, out, err = atoll("doctor")
    assert (code, err) == (0, "")
    for name in registry.names():
        assert f"\n{name}: " in out
    assert "\x1b" not in out


def test_on_a_narrow_terminal_no_line_is_broken_in_a_word(monkeypatch):
    monkeypatch.setattr(doctor, "width_of", lambda _: 60)
    one = Availability(
        usable=False,
        reason="a reason of many words, which is longer than a narrow terminal is wide",
        hint="Type: python -m pip install 'a-package-name>=3.0' 'another-package>=0.25'",
        details={"python": "/a/path/that/is/not/broken/however/long/it/may/be/bin/python"},
    )
    text = doctor.describe({"remote": one}, Colours(False))
    assert [line for line in text.splitlines() if len(line) > 60 and "/a/path" not in line] == []
    assert "/a/path/that/is/not/broken/however/long/it/may/be/bin/python" in text
    assert "'another-package>=0.25'" in text


def test_what_to_do_is_said_once(monkeypatch):
    for name in ("ATOLL_URL", "ATOLL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    found = asyncio.run(doctor.examine(["remote"], SandboxConfig(backend="remote")))["remote"]
    assert found.reason == "no url is given"
    assert found.hint.startswith("Type: atoll serve")


@pytest.mark.parametrize(
    ("installed", "hint"),
    [
        (False, f"{extras.hint('ray')}, then: atoll fleet start"),
        (True, "Type: atoll fleet start"),
    ],
)
def test_a_missing_extra_is_named_before_the_command_that_needs_it(monkeypatch, installed, hint):
    found = object() if installed else None
    monkeypatch.setattr("atoll.fleet.client.find_spec", lambda _: found)
    config = SandboxConfig(backend="ray", url="127.0.0.1:1")
    one = asyncio.run(doctor.examine(["ray"], config))["ray"]
    assert (one.usable, one.hint) == (False, hint)
    assert installed or one.reason == "a fleet needs the extra `ray`"


def test_it_tells_as_json(atoll):
    code, out, _ = atoll("doctor", "--json")
    backends = json.loads(out)["backends"]
    assert code == 0
    assert set(backends) == set(registry.names())
    assert backends["native"]["usable"] is True
    assert backends["native"]["isolation"] in {"jailed", "confined"}
    assert "memory" in backends["native"]["limits"]


def test_one_backend_may_be_asked_for(atoll):
    assert list(json.loads(atoll("doctor", "--json", "--backend", "native")[1])["backends"]) == [
        "native"
    ]


def test_an_unknown_backend_is_an_error(atoll):
    code, out, err = atoll("doctor", "--backend", "cloud")
    assert (code, out) == (2, "")
    assert err.startswith("atoll doctor: --backend must be one of auto, native, ")


def test_without_a_usable_backend_it_exits_with_1_and_says_what_to_type(atoll, monkeypatch):
    lost = registry.Backend(home="atoll.backends.nowhere:Sandbox", summary="gone", extra="gone")
    monkeypatch.setattr(registry, "BACKENDS", {"lost": lost})
    code, out, _ = atoll("doctor")
    assert code == 1
    assert "lost: not usable - gone\n" in out
    assert "  because   atoll.backends.nowhere is not installed\n" in out
    assert f"  to do     {extras.hint('gone')}\n" in out


def test_a_python_that_does_not_exist_is_an_error(atoll):
    code, out, err = atoll("doctor", "--backend", "native", "--python", "/no/python")
    assert (code, out) == (2, "")
    assert err.startswith("atoll: --python: there is no Python interpreter '/no/python'. Give")


def test_only_a_broken_backend_is_red():
    gone = Availability(usable=False, reason="wasmtime is not installed", hint="Type: pip ...")
    broken = Availability(usable=False, reason="no user namespaces", hint="Ask the admin")
    backends = {"daemon": gone, "wasm": gone, "native": broken}
    text = doctor.describe(backends, Colours(enabled=True))
    assert "daemon\x1b[0m: \x1b[2mnot running\x1b[0m" in text
    assert "wasm\x1b[0m: \x1b[2mnot set up\x1b[0m" in text
    assert "native\x1b[0m: \x1b[31mnot usable\x1b[0m" in text
    states = [one["state"] for one in doctor.as_json(backends, [])["backends"].values()]
    assert states == ["not running", "not set up", "not usable"]


def test_the_report_is_aligned_and_coloured_if_wanted():
    backend = Availability(
        usable=True, isolation=Isolation.JAILED, limits={"time": "kill", "memory": "cgroup"}
    )
    lines = doctor.describe({"native": backend}, Colours(enabled=True)).splitlines()
    assert lines[2].startswith("\x1b[1mnative\x1b[0m: \x1b[32musable\x1b[0m, jailed - ")
    assert lines[3:] == ["  limits    time    kill", "            memory  cgroup"]


def test_no_color_means_no_colour(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    assert Colours.of(stream).enabled
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Colours.of(stream).enabled


def test_it_ends_with_one_line():
    backends = {
        "native": Availability(usable=True, isolation=Isolation.JAILED),
        "daemon": Availability(usable=False, hint="atoll daemon start"),
    }
    assert doctor.summary(backends, Colours(False)) == "ready: native, jailed; daemon not running"
    backends["native"] = Availability(usable=False, reason="no seccomp")
    said = doctor.summary(backends, Colours(False))
    assert said == "not ready: native not usable; daemon not running"


def test_attacks_have_names_of_their_own_and_never_spell_the_mark():
    found = check.load()
    assert len(found) >= 25
    assert len({one.name for one in found}) == len(found)
    for one in found:
        compile(one.code, one.name, "exec")
        compile(one.then, one.name, "exec")
        assert MARK not in one.code + one.then
    assert next(one for one in found if one.name == "leftovers").then
    assert next(one for one in found if one.name == "past-the-deadline").timeout_ms == 500


@pytest.fixture(scope="module")
def installed():
    """The console script in a new environment of the system's Python, which any user may run."""
    python = Path("/usr/bin/python3")
    if not python.exists() or os.geteuid() != 0:
        pytest.skip("needs root, and a Python in /usr/bin")
    folder = Path(tempfile.mkdtemp(prefix="atoll-doctor-"))
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    (site / "atoll.pth").write_text(f"{SOURCE}\n")
    script = folder / "bin/atoll"
    script.write_text(f"#!{folder}/bin/python\nimport sys\n{_ENTRY}\n")
    for path in (folder, script):
        path.chmod(0o755)
    if run_as_user(str(script), "--version").returncode:
        pytest.skip(f"user {USER} may not run Atoll from {SOURCE}")
    yield str(script)
    shutil.rmtree(folder)


def _assert_all_held(done: subprocess.CompletedProcess[str]) -> None:
    count = len(check.load())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.count("  held         ") == count
    assert done.stdout.endswith(f"\n{count} of {count} held\n")


@pytest.mark.spec("R0.2", "R1.9")
def test_all_attacks_are_held_by_the_console_script():
    script = str(Path(sys.executable).with_name("atoll"))
    _assert_all_held(
        subprocess.run([script, "doctor", "--attack"], capture_output=True, text=True, check=False)
    )


@pytest.mark.spec("R0.2", "R1.9")
@pytest.mark.parametrize("start", [_as_root, run_as_user], ids=["root", "ordinary user"])
def test_all_attacks_are_held_by_the_systems_python(installed, start):
    _assert_all_held(start(installed, "doctor", "--attack"))


def test_the_picture_shows_as_many_attacks_as_there_are():
    picture = (SOURCE.parent / "docs/assets/terminal.svg").read_text()
    count = len(check.load())
    assert f"{count} of {count} held" in picture


def test_an_attack_that_gets_through_exits_with_1(atoll, monkeypatch):
    easy = check.Attack(name="easy", category="secrets", claim="win", code="won('it')")
    monkeypatch.setattr(check, "load", lambda: [easy])
    code, out, _ = atoll("doctor", "--attack")
    assert code == 1
    assert "  GOT THROUGH  secrets    win (PWNED it)\n0 of 1 held\n" in out
    code, out, _ = atoll("doctor", "--attack", "--json")
    verdict = {"name": "easy", "category": "secrets", "claim": "win", "held": False}
    assert code == 1
    assert json.loads(out)["attacks"] == [{**verdict, "note": "PWNED it"}]


async def _judge(code: str, **fields: object) -> AttackResult:
    attack = check.Attack(name="x", category="x", claim="x", code=code, **fields)
    config, _ = await check._prepare(SandboxConfig())
    async with Canaries() as bait:
        return await check.judge(config, attack, bait)


async def test_a_leak_by_an_error_counts():
    assert (await _judge("raise ValueError('PWN' + 'ED')")).note.startswith("ValueError: PWNED")


async def test_a_leak_in_another_sandbox_counts():
    assert not (await _judge("1", then="won('later')")).held


async def test_a_sandbox_that_does_not_answer_afterwards_counts():
    verdict = await _judge("import builtins; builtins.print = None")
    assert verdict.note.startswith("the next execution did not work: TypeError")


async def test_a_file_outside_counts_and_is_removed():
    async with Canaries() as bait:
        (bait.outside / "left").touch()
        assert check._outside(bait) == "left left on the host"
        assert check._outside(bait) == ""


def _wait_until_executed(pid: int, label: str) -> None:
    """For a moment after the call that makes it, a process has no command line."""
    while label not in Path(f"/proc/{pid}/cmdline").read_text():
        time.sleep(0.01)


async def test_a_survivor_counts_and_is_ended():
    async with Canaries() as bait:
        argv = [sys.executable, "-S", "-c", "import time; time.sleep(600)", bait.label]
        process = await asyncio.create_subprocess_exec(*argv)
        await asyncio.to_thread(_wait_until_executed, process.pid, bait.label)
        assert bait.end_processes() == [process.pid]
        assert await process.wait() == -9


@pytest.fixture
def left_open():
    """A socket that a careless host hands down."""
    with socket.socket() as one:
        one.set_inheritable(True)
        yield one


@pytest.mark.usefixtures("left_open")
@pytest.mark.parametrize("name", BITING)
async def test_an_attack_gets_through_where_nothing_holds_it(name, tmp_path):
    attack = next(one for one in check.load() if one.name == name)
    async with Canaries() as bait:
        argv = [sys.executable, "-c", f"{bait.prelude()}\n{attack.code}"]
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=tmp_path, close_fds=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
    assert MARK in out.decode(), err.decode()


def test_progress_is_shown_on_a_terminal_only():
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    show = AttackReport(stream, Colours(enabled=False), quiet=False)
    attack = check.Attack(name="n", category="c", claim="try", code="")
    show.begin(attack)
    assert stream.getvalue() == "  ...          n: try"
    show.end(AttackResult(name="n", category="c", claim="try", held=True))
    assert stream.getvalue().endswith("\r\x1b[K  held         c          try\n")
    quiet = io.StringIO()
    AttackReport(quiet, Colours(enabled=False), quiet=True).begin(dataclasses.replace(attack))
    assert quiet.getvalue() == ""

"""Hosts that lack something: `atoll doctor` names it at once, with what to type about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hosts_support import SECONDS, run_atoll
from ordinary_user import SOURCE, python_for_user

from atoll.jail.measure import host_facts, kernel_calls

WITHOUT = str(Path(__file__).with_name("without_calls.py"))
ENOSYS, EPERM = 38, 1
DROP_ALL = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
EVERY = kernel_calls.ALWAYS + kernel_calls.WALLS + kernel_calls.JAIL
CHROOT = """cd "$0" && for entry in /*; do
    if test -L "$entry"; then cp -P "$entry" .
    elif test -d "$entry" && test "$entry" != /tmp; then
        mkdir ".$entry" && mount --rbind "$entry" ".$entry"; fi
done && mkdir tmp && mount --rbind /tmp tmp && exec chroot . "$@"
"""
"""As usual: a plain folder, with folders of the system and /proc and /dev bound into it."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make such a host")


def run(*command: str) -> tuple[str, str]:
    """Run a command; return its stdout and stderr with all spaces single."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "ATOLL_DAEMON_SOCKET": "/nonexistent"},
    )
    return " ".join(done.stdout.split()), " ".join(done.stderr.split())


def doctor(*host: str, python: str = sys.executable, backend: str = "native") -> str:
    """Return what `atoll doctor` says of a backend on a host that `host` makes; no traceback."""
    out, err = run(*host, python, "-m", "atoll", "doctor", "--backend", backend)
    assert err == ""
    return out


def without(*calls: kernel_calls.KernelCall, errno: int = ENOSYS) -> tuple[str, ...]:
    """Return the start of a command that runs where the calls do not exist."""
    numbers = (str(call.numbers[os.uname().machine == "aarch64"]) for call in calls)
    return sys.executable, WITHOUT, f"{','.join(numbers)}:{errno}"


@pytest.mark.parametrize("errno", [ENOSYS, EPERM])
@pytest.mark.parametrize("call", EVERY, ids=lambda call: call.name)
def test_a_missing_call_is_named_with_its_version(
    call: kernel_calls.KernelCall, errno: int
) -> None:
    said = doctor(*without(call, errno=errno))
    assert f"because this kernel does not offer {call.name} (Linux {call.since} has it)" in said
    assert ("native: usable, confined" in said) == (call in kernel_calls.JAIL)


def test_all_missing_calls_are_listed_together() -> None:
    said = doctor(*without(*EVERY))
    for call in EVERY:
        assert str(call) in said
    assert "native: not usable" in said


def test_a_command_on_an_old_kernel_fails_at_once_and_says_why() -> None:
    host = without(*kernel_calls.ALWAYS)
    for backend in ("native", "restricted", "auto"):
        out, err = run(
            *host, sys.executable, "-m", "atoll", "run", "--backend", backend, "-c", "print(1)"
        )
        assert out == ""
        assert "pidfd_open (Linux 5.3 has it)" in err
        assert "Traceback" not in err


@needs_root
@pytest.mark.skipif(not shutil.which("runsc"), reason="needs runsc")
def test_inside_gvisor_it_says_what_is_missing() -> None:
    host = ("runsc", "--network=none", "do", "--")
    if run(*host, "/bin/true")[1]:
        pytest.skip(f"runsc do does not work here: {run(*host, '/bin/true')[1]}")
    for backend in ("native", "restricted"):
        said = doctor(*host, backend=backend)
        assert f"{backend}: not usable" in said
        assert "pidfd_open" in said
        assert "This is inside gVisor (runsc), whose kernel has no jails" in said


@needs_root
def test_without_user_namespaces_one_command_is_said_and_it_works() -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    host = ("unshare", "-U", "--map-user=1000", "--map-group=1000", "--keep-caps")
    host += ("sh", "-c", forbid, "sh", *DROP_ALL)
    if run(*host, "/bin/true")[1]:
        pytest.skip("a user namespace without nested ones cannot be made here")
    said = doctor(*host)
    assert "native: usable, confined" in said
    assert "Type `sudo atoll doctor --fix`" in said
    assert "user.max_user_namespaces=10000" in said
    options = said.partition("Or be content with less: ")[2].partition(" (")[0].split()
    assert options[:4] == ["--min-isolation", "confined", "--disk", "none"]
    command = (sys.executable, "-m", "atoll", "run", "--backend", "native", *options)
    assert run(*host, *command, "-c", "print(6 * 7)") == ("42", "")


@needs_root
def test_root_without_capabilities_is_told_the_one_that_it_lacks() -> None:
    said = doctor(*DROP_ALL)
    in_container = bool(host_facts.read().container)
    assert ("This is root without CAP_SETFCAP, who may not map itself" in said) != in_container
    assert "--cap-add SETFCAP" in said
    assert "sysctl" not in said
    enough = ("setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all,+setfcap")
    assert "native: usable, jailed" in doctor(*enough, "--ambient-caps=-all")


@needs_root
def test_a_chroot_is_named(tmp_path: Path) -> None:
    said = doctor("unshare", "-m", "sh", "-c", CHROOT, str(tmp_path))
    assert "This is a chroot, in which the kernel forbids user namespaces" in said
    assert "sysctl" not in said


@needs_root
@pytest.mark.parametrize("most", [2, 3, 4, 6])
def test_few_processes_are_enough_or_the_limit_is_named(most: int) -> None:
    user = str(54_000 + most)  # one that runs nothing else
    host = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")
    command = (python_for_user(), "-m", "atoll", "doctor", "--backend", "native")
    said = " ".join(run(*host, "prlimit", f"--nproc={most}", *command))
    assert "Traceback" not in said
    if "native: usable, jailed" not in said:
        assert "This process may use too little: type ulimit -u 1024." in said


def test_a_host_that_lacks_nothing_is_told_nothing() -> None:
    done = run_atoll("doctor", "--backend", "native")
    assert "native: usable" in done.stdout
    assert "does not offer" not in done.stdout
